"""Speculative decoding (Leviathan et al. 2023) on the device: its tokens have exactly the large model's distribution.

A small model drafts k tokens, the large one reads them at once, accepts some of them by a draw, and draws one more.
Rejected tokens are overwritten in the caches.

>>> import functools
>>> from algorithms import DTransformerConfig, d_logits, init_d_transformer
>>> sizes = {"N_V": 7, "l_max": 12, "H": 2, "d_e": 8, "d_mlp": 16}
>>> large, small = (DTransformerConfig(**sizes, L=L) for L in (2, 1))
>>> target, draft = (init_d_transformer(jax.random.key(s), c) for s, c in ((4, large), (1, small)))
>>> target = target._replace(W_u=target.W_u / 2)  # so that every pair of tokens occurs
>>> prompt, N = jnp.array([5, 2, 3]), 1024
>>> decode = functools.partial(speculate, (target, large), (draft, small), prompt, l_gen=2)
>>> y = jax.vmap(lambda key: decode(key=key))(jax.random.split(jax.random.key(3), N))
>>> pairs = jnp.stack(jnp.meshgrid(jnp.arange(7), jnp.arange(7), indexing="ij"), -1).reshape(49, 2)
>>> log_P = jax.nn.log_softmax(d_logits(jnp.concatenate([jnp.tile(prompt, (49, 1)), pairs], 1), target), axis=0)
>>> expected = N * jnp.exp(log_P[pairs[:, 0], jnp.arange(49), 2] + log_P[pairs[:, 1], jnp.arange(49), 3])
>>> counts = jnp.bincount(7 * y[:, 0] + y[:, 1], length=49)
>>> bool(((counts - expected) ** 2 / expected).sum() < 84)  # χ² with 48 degrees of freedom, p = 0.001
True

A tree of drafts is read in one pass, each token with its ancestors as its mask and its depth as its position:

>>> tokens = jnp.array([0, 2, 6, 1])  # after the prompt 0 2, and 0 6 1
>>> ancestors = [[0], [0, 1], [0, 2], [0, 2, 3]]
>>> mask = jnp.array([[z in ancestors[x] for x in range(4)] for z in range(4)])
>>> depth = jnp.array([len(of_token) - 1 for of_token in ancestors])
>>> _, cache = read_tokens(target, empty_cache(large), prompt, 0)
>>> logits, _ = read_tokens(target, cache, tokens, 3, mask=mask, positions=3 + depth)
>>> branch = jnp.array([0, 2, 3])
>>> expected = d_logits(jnp.concatenate([prompt, tokens[branch]]), target)[:, 3:]
>>> bool(jnp.allclose(logits[:, branch], expected, atol=1e-5))
True
"""

import jax
import jax.numpy as jnp

from algorithms import empty_cache, read_tokens


def speculate(target, draft, prompt, l_gen, key, k=3):
    """Return l_gen tokens after the prompt, by two models, each (θ, configuration); call it within ``jax.jit``."""
    (target, large), (draft, small), l = target, draft, len(prompt)

    def propose(state, key):
        y, n, cache = state
        logits, cache = read_tokens(draft, cache, y[None], n)
        log_q = jax.nn.log_softmax(logits[:, 0])
        y = jax.random.categorical(key, log_q)
        return (y, n + 1, cache), (y, log_q)

    def more(state):
        y, n, of_target, of_draft, key = state  # y[:n] has been read, y[n] is known
        key, *keys = jax.random.split(key, 4)
        (*_, of_draft), (x, log_q) = jax.lax.scan(propose, (y[n], n, of_draft), jax.random.split(keys[0], k + 1))
        logits, of_target = read_tokens(target, of_target, jnp.append(y[n], x[:k]), n)
        log_p, i = jax.nn.log_softmax(logits, axis=0).T, jnp.arange(k)
        accepted = jnp.log(jax.random.uniform(keys[1], (k,))) < log_p[i, x[:k]] - log_q[i, x[:k]]
        a = jnp.cumprod(accepted).sum()  # the number of tokens before the first rejected one
        rest = jnp.exp(log_p[a]) - jnp.where(a < k, jnp.exp(log_q[a]), 0)
        x = x.at[a].set(jax.random.categorical(keys[2], jnp.log(jnp.maximum(rest, 0))))
        return jax.lax.dynamic_update_slice(y, x, (n + 1,)), n + a + 1, of_target, of_draft, key

    y = jnp.zeros(l + l_gen + k, prompt.dtype).at[:l].set(prompt)
    _, of_target = read_tokens(target, empty_cache(large), prompt[:-1], 0)
    _, of_draft = read_tokens(draft, empty_cache(small), prompt[:-1], 0)
    state = (y, l - 1, of_target, of_draft, key)
    return jax.lax.while_loop(lambda state: state[1] < l + l_gen - 1, more, state)[0][l : l + l_gen]
