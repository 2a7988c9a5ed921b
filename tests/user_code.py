"""Code that uses the library, for pyright to check; it is never run.

Each ``pyright: ignore`` marks an error that pyright must report; if it does not, that is an error, too.
"""

from typing import assert_type

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from algorithms import (
    PAPER,
    DTransformerConfig,
    DTransformerParams,
    Variant,
    d_inference,
    d_token_losses,
    d_training,
    d_transformer,
    init_d_transformer,
    log_loss,
    padding,
)
from algorithms.inside import Recorded, at, gradients, intervene, record
from algorithms.lines import MLP, Attention, RMSNorm, Rotary


def arrays_of_numpy(theta: DTransformerParams, x: np.ndarray, lengths: np.ndarray) -> None:
    assert_type(d_transformer(x, theta), Array)
    assert_type(d_training(x, theta, N_epochs=1, eta=0.1, length=lengths), DTransformerParams)
    d_token_losses(x, theta, length=lengths)
    d_transformer(x, theta, mask=np.ones((3, 3), bool))
    d_transformer(x, theta, mask=padding(lengths))
    d_inference(x, theta, l_gen=3, tau=np.ones(3), key=jax.random.key(0))
    log_loss(np.ones((3, 4)), np.ones((7, 3)), np.arange(4), weights=np.ones(4, bool))


def arguments(theta: DTransformerParams, x: Array) -> None:
    d_transformer(x, theta, implementation="printed")  # pyright: ignore[reportArgumentType]
    d_transformer(x, theta, PAPER)  # pyright: ignore[reportCallIssue]
    d_transformer(x, x)  # pyright: ignore[reportArgumentType]
    d_transformer(x, theta, lenght=3)  # pyright: ignore[reportCallIssue]


def optional_parameters(theta: DTransformerParams) -> None:
    assert_type(theta.W_u, Array | None)
    assert_type(theta.layers.attention.heads.W_q, Array)
    W_u = theta.W_e.T if theta.W_u is None else theta.W_u
    assert_type(W_u, Array)
    theta.W_u.shape  # noqa: B018  # pyright: ignore[reportOptionalMemberAccess]


def recording(theta: DTransformerParams, x: np.ndarray) -> None:
    P, seen = record(d_transformer, "A", at("X@8", layer=-1))(x, theta)
    assert_type(P, Array)
    assert_type(seen, Recorded)
    assert_type(seen["A"], Array)
    assert_type(intervene(d_transformer, {"X@8": 0.0})(x, theta), Array)

    def loss(x: Array) -> Array:
        return jnp.log(d_transformer(x, theta))[2, -1]

    value, seen, gradient = gradients(loss, "A")(jnp.asarray(x))
    assert_type(value, Array)
    assert_type(gradient["A"], Array)
    record(d_transformer, "A")(x, theta, lenght=3)  # pyright: ignore[reportCallIssue]


def changed_records() -> None:
    variant = PAPER.but(norm=RMSNorm(epsilon=1e-5), mlp=MLP(gated=True).but(activation="silu"), order="norm_last")
    assert_type(variant, Variant)
    assert_type(variant.but(attention=Attention(positions=Rotary().but(base=3e5))), Variant)
    PAPER.but(order="first")  # pyright: ignore[reportArgumentType]
    PAPER.but(ordre="norm_last")  # pyright: ignore[reportCallIssue]
    RMSNorm().but(epsilon="small")  # pyright: ignore[reportArgumentType]


def compilation(x: np.ndarray) -> None:
    config = DTransformerConfig(N_V=7, l_max=8, L=2, H=2, d_e=16, d_mlp=32)
    theta = init_d_transformer(jax.random.key(0), config)
    assert_type(d_transformer.lower(x, theta), jax.stages.Lowered)
    d_transformer.lower(x, theta).compile()
    d_transformer.eval_shape(x, theta)
    d_transformer.lower(x)  # pyright: ignore[reportCallIssue]
