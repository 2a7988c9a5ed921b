"""Gauss–Newton products Jᵀ H J v: J is the derivative of the log-probabilities, H the Hessian of the loss by them.

For the cross-entropy, H is diag(p) − p pᵀ in each column.

>>> from algorithms import DTransformerConfig, init_d_transformer
>>> theta = init_d_transformer(jax.random.key(0), DTransformerConfig(N_V=23, l_max=16, L=2, H=2, d_e=16, d_mlp=32))
>>> x, v = jnp.array([3, 1, 4, 1, 5, 9]), jax.tree.map(jnp.ones_like, theta)
>>> one, other = (jax.jit(f)(theta, v, x).W_e for f in (by_forward_mode, by_reverse_mode))
>>> bool(jnp.allclose(one, other, rtol=1e-3, atol=1e-3 * jnp.abs(one).max()))
True
"""

import jax
import jax.numpy as jnp

from algorithms import d_logits


def log_P(theta, x, implementation):
    return jax.nn.log_softmax(d_logits(x, theta, implementation=implementation), axis=0)


def by_forward_mode(theta, v, x):
    """Only the lines as printed have forward mode."""
    log_p, J = jax.linearize(lambda theta: log_P(theta, x, "paper"), theta)
    return jax.linear_transpose(J, theta)(H(log_p, J(v)))[0]


def by_reverse_mode(theta, v, x):
    """With the fast kernels, J v is the derivative of Jᵀ w by w."""
    log_p, pullback = jax.vjp(lambda theta: log_P(theta, x, "auto"), theta)
    _, J = jax.vjp(lambda w: pullback(w)[0], jnp.zeros_like(log_p))
    return pullback(H(log_p, *J(v)))[0]


def H(log_p, u):
    p = jnp.exp(log_p)
    return p * (u - (p * u).sum(0, keepdims=True))
