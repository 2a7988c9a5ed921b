"""Find the values that a score depends on, by putting values of one run into another, or by estimating the effect.

A score is a function that calls the algorithms and returns a number, such as the difference of two logits; ``source``
and ``target`` are its arguments in two runs with equally many tokens. Each function is compiled once for each score.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from algorithms.inside import At, at, gradients, intervene, record
from algorithms.inside.compilation import compiled_for_each_function

Score = Callable[..., Float[Array, ""]]


@compiled_for_each_function
def activation_patching(
    score: Score, name: str, source: tuple[Any, ...], target: tuple[Any, ...], *, by: str = "token"
) -> Float[Array, "L n"]:
    """The score of the target run with a value replaced by the source run's, for each layer and token, or head of all
    tokens.

    Example:
        >>> import jax
        >>> from algorithms import DTransformerConfig, d_transformer, init_d_transformer
        >>> theta = init_d_transformer(jax.random.key(0), DTransformerConfig(N_V=5, l_max=4, L=2, H=3, d_e=6, d_mlp=8))
        >>> def score(x):
        ...     return jnp.log(d_transformer(x, theta)[2, -1])
        >>> activation_patching(score, "X@8", (jnp.array([3, 0, 1]),), (jnp.array([3, 2, 1]),)).shape
        (2, 3)
    """
    _, seen = record(score, name)(*source)
    value = seen[name]
    n = value.shape[-1 if by == "token" else 1]

    def patched(layer, i):
        where = at(name, layer=layer, **{by: i})
        of_layer = value[layer]
        return intervene(score, {where: of_layer[..., i] if by == "token" else of_layer[i]})(*target)

    return jax.lax.map(lambda layer: jax.vmap(lambda i: patched(layer, i))(jnp.arange(n)), jnp.arange(len(value)))


def attribution_patching(
    score: Score, name: str, source: tuple[Any, ...], target: tuple[Any, ...]
) -> Float[Array, "*axes"]:
    """Estimate to first order what patching each entry adds to the target's score, with one gradient: ``g ⊙ (source's
    value − target's value)``; for several entries, sum theirs (Nanda 2023, "Attribution patching").
    """
    _, of_source = record(score, name)(*source)
    _, of_target, gradient = gradients(score, name)(*target)
    return gradient[name] * (of_source[name] - of_target[name])


def path_patching(
    score: Score, sender: At, receiver: At, source: tuple[Any, ...], target: tuple[Any, ...]
) -> Float[Array, ""]:
    """The target's score if only the receiver, such as ``at("Q", layer=2, head=0)``, sees the sender, a part of
    ``Y@2``, as in the source run, over the direct path: all other heads and MLPs keep their values in the target run
    until the receiver is computed (Wang et al. 2022, "Interpretability in the wild").
    """
    _, kept = record(score, "Y@2", "hidden")(*target)
    _, sent = record(score, sender)(*source)
    _, received = record(intervene(score, {**kept, sender: sent[sender]}), receiver)(*target)
    return intervene(score, {receiver: received[receiver]})(*target)


def causal_tracing(
    score: Score, arguments: tuple[Any, ...], tokens: Any, noise: Float[Array, "d_e n"], *, name: str = "X@8"
) -> tuple[Float[Array, ""], Float[Array, "L l"]]:
    """The score of one sequence with noise in the embeddings of some tokens, a slice or an array; and the scores with
    the named value of the clean run restored, for each layer and token (Meng et al. 2022).
    """
    return _traced(score, arguments, at("X@3", token=tokens), noise, name)


@compiled_for_each_function
def _traced(score: Score, arguments: tuple[Any, ...], noisy: At, noise: Array, name: str) -> tuple[Array, Array]:
    _, clean = record(score, name)(*arguments)
    corrupted = intervene(score, {noisy: lambda X: X + noise})
    L, l = len(clean[name]), clean[name].shape[-1]

    def restored(layer, token):
        where: str = at(name, layer=layer, token=token)
        return intervene(corrupted, {where: clean[name][layer][..., token]})(*arguments)

    each = jax.lax.map(lambda layer: jax.vmap(lambda t: restored(layer, t))(jnp.arange(l)), jnp.arange(L))
    return corrupted(*arguments), each
