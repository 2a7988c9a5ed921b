"""A variant: a model as a record of the lines of Algorithms 8 to 10, and the check that θ fits it."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp

from algorithms.machinery.annotations import Range, Relation
from algorithms.model.attention import Attention
from algorithms.model.embedding import Embedding
from algorithms.model.line import Line
from algorithms.model.mlp import MLP
from algorithms.model.norm import LayerNorm
from algorithms.model.shapes import attention_shapes, check_present
from algorithms.model.unembedding import Unembedding
from algorithms.notation import Dropout

Order = Literal["norm_first", "norm_last", "side_by_side", "no_norm"]


def _check_goes_with(arguments: Mapping[str, Any]) -> None:
    """Check that θ fits the variant, and that its dropout has a key."""
    variant, theta = arguments["variant"], arguments["theta"]
    if variant.dropout and arguments.get("key") is None:
        raise ValueError(
            f"key: the variant drops activations with probability {variant.dropout}, which needs a key; "
            "give key=jax.random.key(seed), or variant=variant.without_dropout()"
        )
    check_present(theta, variant)
    if theta.W_u is None and getattr(theta, "W_f", None) is not None and theta.W_f.shape[0] != theta.W_e.shape[0]:
        (d_in, _), d_f = theta.W_e.shape, theta.W_f.shape[0]
        rows = "d_e" if theta.W_in is None else "d_in"
        raise ValueError(f"theta.W_u: a tied unembedding needs d_f = {rows} = {d_in}, got d_f = {d_f}; give W_u")
    longest = variant.embedding.limit(theta)
    if longest is not None and variant.embedding.first_position:
        for name in arguments.keys() & {"z", "x"}:
            l = arguments[name].shape[-1]
            if isinstance(l, int) and l > longest:
                raise ValueError(f"{name}: expected at most l_max = {longest} tokens, got {l}; cut it into chunks")


def _check_drops_nothing(arguments: Mapping[str, Any]) -> None:
    dropout = arguments["variant"].dropout
    if dropout:
        raise ValueError(
            "variant: expected dropout = 0.0, since the paper's training and inference have no key for it, "
            f"got {dropout}; give variant=variant.without_dropout()"
        )


NO_DROPOUT = Relation(_check_drops_nothing)
"""For functions that train or generate as printed, without a key for dropout."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Variant(Line):
    """A model as the lines of Algorithms 8 to 10. Every default is the paper's.

    Attributes:
        embedding: lines 1 to 3.
        norm: lines 5, 7 and 10.
        attention: line 6. If there are n, the layers cycle through them: layer l = 0, 1, … has number l mod n.
        mlp: line 8; None for attention-only layers.
        order: order of a layer. ``"norm_first"``: X + f(norm(X)); ``"norm_last"``: norm(X + f(X)); ``"side_by_side"``:
            X + attention(norm(X)) + mlp(norm(X)), where both read the layer's input; ``"no_norm"``: X + f(X). None is
            the algorithm's own, ``"norm_last"`` in 8 and 9 and ``"norm_first"`` in 10.
        final_norm: whether a norm follows the last layer. None is the algorithm's own: yes in 10 (line 10), no in 8.
        unembedding: the last line.
        shared_layers: number of consecutive layers that share parameters, in ALBERT all; they are one layer of θ.
        head: whether Algorithm 9 has lines 10 and 11; a bare encoder does not.
        pooler: whether Algorithm 9 has W_pool and b_pool, which BERT's classifiers apply to the first token's encoding.
        dropout: probability of dropping an attention weight or a hidden unit of the MLP; above 0 it needs a key.
    """

    __expected__: ClassVar[str] = "a Variant such as PAPER"
    __relation__: ClassVar[Relation] = Relation(_check_goes_with)

    optional: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("W_f", "b_f", "norm"), "head"),
        **dict.fromkeys(("W_pool", "b_pool"), "pooler"),
        **dict.fromkeys(("distances", "encoder_distances", "decoder_distances"), "never"),
    }

    embedding: Embedding = Embedding()
    norm: LayerNorm = LayerNorm()
    attention: Attention | tuple[Attention, ...] = Attention()
    mlp: MLP | None = MLP()
    order: Order | None = None
    final_norm: bool | None = None
    unembedding: Unembedding = Unembedding()
    shared_layers: Annotated[int, Range("a number >= 1", lambda n: n >= 1)] = 1
    head: bool = True
    pooler: bool = False
    dropout: Dropout = 0.0

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        lines = self.attentions
        if not lines or any(attention_shapes(line) != attention_shapes(lines[0]) for line in lines):
            self.refuse("attention", "one line, or several with the same parameters")
        if len(set(lines)) == 1:  # so that records of the same model are equal
            object.__setattr__(self, "attention", lines[0])

    @property
    def attentions(self) -> tuple[Attention, ...]:
        """The attentions as a tuple."""
        return self.attention if isinstance(self.attention, tuple) else (self.attention,)

    def of_every_layer(self, stacked: Any) -> Any:
        """The stacked parameters of all L layers, shared ones repeated, from those that θ stacks."""
        return jax.tree.map(lambda a: jnp.repeat(a, self.shared_layers, axis=0), stacked)

    def without_dropout(self) -> "Variant":
        """The variant without dropout, for inference."""
        return self.but(dropout=0.0)
