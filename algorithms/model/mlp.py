"""Line 8 of Algorithm 10, line 7 of Algorithm 9, and lines 7 and 18 of Algorithm 8: the MLP."""

import dataclasses
import math
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from algorithms.machinery.arrays import scaled
from algorithms.machinery.contract import array
from algorithms.machinery.devices import shard
from algorithms.machinery.naming import numbered
from algorithms.machinery.record import Count, Positive
from algorithms.model.line import Line
from algorithms.model.norm import LayerNorm
from algorithms.ops.activation import activate, xielu
from algorithms.ops.dropout import dropout
from algorithms.ops.linear import linear
from algorithms.parameters import MLPParams

Activation = Literal["relu", "relu_squared", "gelu", "gelu_tanh", "gelu_sigmoid", "silu"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MLP(Line):
    """``W_mlp2 f(W_mlp1 X + b_mlp1 1ᵀ) + b_mlp2 1ᵀ``.

    Attributes:
        activation: f; None is the algorithm's own, ReLU in 8 and GELU in 9 and 10.
        gated: whether ``f(W_gate X + b_gate 1ᵀ) ⊙ (W_mlp1 X + b_mlp1 1ᵀ)`` replaces ``f(W_mlp1 X + b_mlp1 1ᵀ)``.
        biases: whether there are biases.
        factors: c_1 and c_2 of ``f(c_1 G) ⊙ c_2 U`` in place of the gate's ``f(G) ⊙ U``, as in Falcon-H1.
        clip: c: ``f(min(G, c)) ⊙ (1 + max(−c, min(U, c)))`` replaces the gate's ``f(G) ⊙ U``, as in gpt-oss; None: not.
        normalize_output: a norm of the result, before it is added to the residual stream.
        d_mlp: the number of hidden units; None: that of the model's configuration.
    """

    activation: Activation | None = None
    gated: bool = False
    biases: bool = True
    factors: tuple[float, float] = (1.0, 1.0)
    clip: Positive | None = None
    normalize_output: LayerNorm | None = None
    d_mlp: Count | None = None

    own_norms: ClassVar[bool] = False
    """Whether it reads the residual stream, without the norm before it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.factors) != 2 or not (self.gated or self.factors == (1, 1)):
            self.refuse("factors", "two numbers, both 1 without a gate")

    def shapes(self) -> MLPParams:
        """The shapes of its parameters."""
        return MLPParams(
            W_mlp1=array("d_mlp d_e"),
            b_mlp1=array("d_mlp", self.biases),
            W_mlp2=array("d_e d_mlp"),
            b_mlp2=array("d_e", self.biases),
            W_gate=array("d_mlp d_e", self.gated),
            b_gate=array("d_mlp", self.gated and self.biases),
            norm_out=self.normalize_output and self.normalize_output.shapes(),
        )

    @numbered
    def __call__(
        self, X: Float[Array, "d_e *columns"], W: MLPParams, *, activation: Activation
    ) -> Float[Array, "d_e *columns"]:
        """The MLP, with this activation f."""
        U = linear(W.W_mlp1, X, W.b_mlp1)  # inside
        G = None if W.W_gate is None else linear(W.W_gate, X, W.b_gate)
        hidden = self.hidden(U, G, activation, W)  # inside
        hidden = dropout(shard(hidden, "rows"))
        Y, norm = linear(W.W_mlp2, hidden, W.b_mlp2), self.normalize_output
        return Y if norm is None or W.norm_out is None else norm(Y, W.norm_out)

    def hidden(
        self, U: Float[Array, "*units"], G: Float[Array, "*units"] | None, activation: Activation, W: Any = None
    ) -> Any:
        """``f(U)``, or with a gate ``f(G) ⊙ U``."""
        if G is None:
            return activate(activation, U)
        if self.clip is not None:
            U, G = 1 + jnp.clip(U, -self.clip, self.clip), jnp.minimum(G, self.clip)
        if self.factors != (1, 1):
            G, U = scaled(G, self.factors[0]), scaled(U, self.factors[1])
        return activate(activation, G) * U


@dataclasses.dataclass(frozen=True, kw_only=True)
class XIELU(MLP):
    """``W_mlp2 f(W_mlp1 X + b_mlp1 1ᵀ) + b_mlp2 1ᵀ``, where f is xIELU with its own α_p and α_n, as in Apertus."""

    activation: ClassVar[None] = None
    gated: ClassVar[bool] = False
    factors: ClassVar[tuple[float, float]] = (1.0, 1.0)
    clip: ClassVar[None] = None

    def shapes(self) -> MLPParams:
        """The shapes of its parameters; f starts with softplus(α_p) = ½ + softplus(α_n) = 0.8."""
        alpha_p, alpha_n = (array("", start=math.log(math.expm1(value))) for value in (0.8, 0.3))
        return super().shapes()._replace(alpha_p=alpha_p, alpha_n=alpha_n)

    def hidden(self, U: Float[Array, "*units"], G: None, activation: Activation, W: Any = None) -> Any:
        """``f(U)``."""
        return xielu(U, W.alpha_p, W.alpha_n)


def of_hidden_units(line: MLP) -> Any:
    """The shapes of an MLP's parameters, with a separate axis of hidden units if it sets their number."""
    own = "d_mlp" if line.d_mlp is None else f"d_mlp_{line.d_mlp}"
    return jax.tree.map(lambda s: dataclasses.replace(s, axes=s.axes.replace("d_mlp", own)), line.shapes())
