"""What follows the lines of a layer of Algorithm 10 in Gemma 4: an input of the layer's own, and a scalar."""

import dataclasses
from typing import Any

from jax import Array
from jaxtyping import Float, Integer

from algorithms.alg01_embedding import token_embedding
from algorithms.machinery.contract import array
from algorithms.machinery.devices import shard
from algorithms.machinery.record import Count, Record
from algorithms.model.mlp import Activation
from algorithms.model.norm import RMSNorm
from algorithms.ops.activation import activate
from algorithms.ops.linear import linear
from algorithms.parameters import LayerEndParams, LayerInputsParams


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerEnd(Record):
    """``X ← s (X + norm(W_o (f(W_gate X) ⊙ P)))`` with the layer's own input ``P``, or ``X ← s X``.

    The input of layer l is ``P = (norm(W_l X_0/√d_e) + √d W_e^l[:, x[t]])/√2``: an embedding of the layer's own, and a
    projection of the first embedding X_0 of Algorithm 10.

    Attributes:
        d: rows of an input; None: layers have none, and s alone.
        activation: f.
        norm: both norms.

    Source: Gemma Team 2026, Gemma 4 (transformers, ``Gemma4TextModel``); the inputs are those of Gemma 3n.
    """

    d: Count | None = None
    activation: Activation = "gelu_tanh"
    norm: RMSNorm = RMSNorm(epsilon=1e-6)

    def sizes(self) -> dict[str, int]:
        """The rows of an input."""
        return {} if self.d is None else {"d_input": self.d}

    def of_inputs(self) -> LayerInputsParams | None:
        """The shapes of the parameters of all inputs; None if there are none."""
        W_e, norm = array("L*d_input N_V", role="embedding"), self.norm.shapes("d_input")
        return LayerInputsParams(W_e, array("L*d_input d_e"), norm) if self.d else None

    def shapes(self) -> LayerEndParams:
        """The shapes of its parameters in a layer."""
        norm = self.norm.shapes() if self.d else None
        W_gate, W_o = array("d_input d_e", self.d), array("d_e d_input", self.d)
        return LayerEndParams(W_gate, W_o, norm, array("", start=1.0))

    def inputs(
        self, x: Integer[Array, "*columns"], X_0: Float[Array, "d_e *columns"], W: LayerInputsParams
    ) -> Float[Array, "L d_input *columns"]:
        """P of every layer."""
        d: Any = self.d
        own = shard(token_embedding(x, W.W_e) * d**0.5, "tokens")
        both = linear(W.W_l, X_0 * len(X_0) ** -0.5), own
        projected, own = (P.reshape(-1, d, *P.shape[1:]) for P in both)
        return (self.norm.of_heads(projected, W.norm.gamma) + own) * 2**-0.5

    def __call__(
        self, X: Float[Array, "d_e *columns"], W: LayerEndParams, P: Float[Array, "d_input *columns"] | None
    ) -> Float[Array, "d_e *columns"]:
        """The residual stream behind the layer."""
        if P is not None:
            Y = activate(self.activation, linear(W.W_gate, shard(X, None))) * P
            X = X + shard(self.norm(linear(W.W_o, Y), W.norm_out), "tokens")
        return X * W.s.astype(X.dtype)
