"""θ of Algorithms 8, 9 and 10: parameters, the variant whose lines they belong to, and the shapes that these have.

Initializers, checks, counts and the mesh derive from the shapes.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import Array

from algorithms.machinery.contract import Shape, array, described
from algorithms.machinery.options import shapes_of_leaves
from algorithms.machinery.record import serializable
from algorithms.model.variant import Variant
from algorithms.model.variants import PAPER
from algorithms.parameters import (
    EDDecoderLayerParams,
    EmbeddingParams,
    LayerInputsParams,
    LayerNormParams,
    MTPParams,
    TransformerLayerParams,
)

C = TypeVar("C", bound=type)

Layers = Any
"""The parameters of layers: a TransformerLayerParams or EDDecoderLayerParams, stacked, if those of all layers have
equal shapes, as θ's annotations have it; otherwise a tuple of one for each `Run` of `Variant.parts`. Or a list of those
of every layer, as generation lays them out."""


def stacks_of(layers: Layers) -> tuple[Any, ...]:
    """The stacks of layers, one or several."""
    return layers if type(layers) is tuple else (layers,)


def count_layers(layers: Layers, variant: Variant) -> int:
    """The number of layers of these parameters."""
    if isinstance(layers, list):
        return len(layers)
    n = 0
    for stack in stacks_of(layers):
        n += len(jax.tree.leaves(stack)[0])
    return variant.shared_layers * n


def places(variant: Variant, L: int) -> list[tuple[int, int]]:
    """For each of L layers, in order, the number of its stack in θ, and its row there."""
    runs = itertools.chain(*variant.parts(L))
    found = {l: (i, row) for i, run in enumerate(runs) for row, l in enumerate(run.numbers)}
    return [found[l] for l in range(L)]


def of_each_layer(layers: Layers, variant: Variant) -> list[Any]:
    """The shapes of the parameters of each layer."""

    def shapes(tree, axis=0):
        return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[axis:], a.dtype), tree)

    if isinstance(layers, list):
        return [shapes(W) for W in layers]
    stacks = [shapes(stack, 1) for stack in stacks_of(layers)]
    return [stacks[stack] for stack, _ in places(variant, count_layers(layers, variant))]


def every_layer(layers: Layers, variant: Variant, part: Callable[[Any], Any]) -> Any:
    """A part of the parameters of all layers, as one stack, with shared ones repeated.

    Raises ValueError if it has different shapes in different layers.
    """
    stacks = stacks_of(layers)
    if len(stacks) == 1:
        return variant.of_every_layer(part(stacks[0]))
    shapes = {shapes_of_leaves(jax.tree.map(lambda a: a[0], part(stack))) for stack in stacks}
    if len(shapes) > 1:
        kinds = " and ".join(dict.fromkeys(type(part(stack)).__name__ for stack in stacks))
        raise ValueError(
            f"theta.layers: expected parameters of equal shapes in all layers, got {kinds} of {len(shapes)} shapes; "
            "look at the stacks of theta.layers one by one"
        )
    firsts = list(itertools.accumulate([0, *(len(jax.tree.leaves(stack)[0]) for stack in stacks)]))
    rows = jnp.asarray([firsts[i] + row for i, row in places(variant, firsts[-1])])
    return jax.tree.map(lambda *a: jnp.concatenate(a)[rows], *map(part, stacks))


def sizes_of_stacks(L: str, variant: Variant, n: int) -> dict[str, int]:
    """The sizes of the axes along which n layers are stacked, by name: L if there is one stack."""
    if variant.is_one_stack:
        return {L: n // variant.shared_layers}
    return {f"{L}_{i}": len(run.numbers) for i, run in enumerate(itertools.chain(*variant.parts(n)))}


def _shapes(theta: Any) -> Any:
    """The shapes of this θ; None for optional parameters that it lacks. Raises TypeError if it has no `Variant`."""
    if not isinstance(theta.variant, Variant):
        raise TypeError(f"theta.variant: expected a Variant such as PAPER, got {theta.variant!r}")
    lacks = [name for name in MAY_LACK[type(theta)] if getattr(theta, name) is None]
    if getattr(theta, "context", None) is not None:
        lacks += [f"context.{name}" for name, array in theta.context._asdict().items() if array is None]
    return _without(lacks, theta_shapes(type(theta), theta.variant, theta=theta))


def of_a_variant(kind: C) -> C:
    """Give a class of θ the methods by which the contract checks it."""
    methods: Any = kind
    methods.__shapes__ = _shapes
    methods.__declared__ = lambda theta: theta_shapes(kind, theta.variant, theta=theta)
    methods.__repr__ = _shown
    return serializable(kind)


def _shown(theta: Any) -> str:
    arrays = jax.tree_util.tree_leaves_with_path(theta)
    lines = [f"  {jax.tree_util.keystr(path, simple=True, separator='.')}: {described(a)}" for path, a in arrays]
    return "\n".join([f"{type(theta).__name__} of {theta.variant!r}", *lines])


@of_a_variant
class EDTransformerParams(NamedTuple):
    """θ of Algorithm 8. Fields from ``context`` on are not in the paper.

    ``W_p`` is None if the variant has no learned positions, and ``W_u`` if it is tied, W_u = W_eᵀ. The norms follow the
    embeddings, the encoder's last layer and the decoder's last layer. Layers whose scores use distances share them, as
    in T5.
    """

    W_e: Array
    W_p: Array | None
    encoder: TransformerLayerParams
    decoder: EDDecoderLayerParams
    W_u: Array | None
    context: EmbeddingParams | None = None
    embedding_norm: LayerNormParams | None = None
    encoder_norm: LayerNormParams | None = None
    decoder_norm: LayerNormParams | None = None
    b_u: Array | None = None
    encoder_distances: Array | None = None
    decoder_distances: Array | None = None
    variant: Variant = PAPER


@of_a_variant
class ETransformerParams(NamedTuple):
    """θ of Algorithm 9. Fields from ``embedding_norm`` on are not in the paper: BERT, ALBERT and others add them.

    ``W_p`` is None if the variant has no learned positions, and ``W_u`` if it is tied, W_u = W_eᵀ (then d_f = d_in). A
    bare encoder, which ends with line 9, has no W_f, b_f, norm and W_u. W_t embeds token types; W_pool and b_pool
    project the first token's encoding for classifiers. There is no b_f where MLPs have no biases, and an encoder_norm
    after the last layer if the variant says so. Embeddings have d_in = d_e rows, unless W_in and b_in project
    them.
    """

    W_e: Array
    W_p: Array | None
    layers: TransformerLayerParams
    W_f: Array | None
    b_f: Array | None
    norm: LayerNormParams | None
    W_u: Array | None
    embedding_norm: LayerNormParams | None = None
    b_u: Array | None = None
    W_t: Array | None = None
    W_pool: Array | None = None
    b_pool: Array | None = None
    distances: Array | None = None
    W_in: Array | None = None
    b_in: Array | None = None
    encoder_norm: LayerNormParams | None = None
    variant: Variant = PAPER


@of_a_variant
class DTransformerParams(NamedTuple):
    """θ of Algorithm 10. ``W_p`` is None if the variant has no learned positions, ``W_u`` if it is tied, W_u = W_eᵀ.

    Not in the paper: ``b_u``, an output bias; ``embedding_norm``, which follows the embeddings; ``distances``, which
    are added to the scores of all layers whose attention has `Distances`, as in T5; W_f, b_f and norm_f, of a
    variant whose unembedding is projected; ``mtp``, a head for the token after the next; and ``layer_inputs``, from
    which all layers have embeddings of their own.
    """

    W_e: Array
    W_p: Array | None
    layers: TransformerLayerParams
    norm: LayerNormParams | None
    W_u: Array | None
    b_u: Array | None = None
    embedding_norm: LayerNormParams | None = None
    distances: Array | None = None
    W_f: Array | None = None
    b_f: Array | None = None
    norm_f: LayerNormParams | None = None
    mtp: MTPParams | None = None
    layer_inputs: LayerInputsParams | None = None
    variant: Variant = PAPER


def declared(tree: Any) -> dict[Any, Shape]:
    """The `Shape` that a line declares for each array of parameters, or of gradients or an optimizer's state, by path.

    The method ``__declared__`` of parameters returns the shapes of their arrays, except of inner parameters that have
    that method, too. Arrays that the tree lacks may have a shape here.
    """
    declares = getattr(tree, "__declared__", None)
    found = {} if declares is None else dict(jax.tree_util.tree_leaves_with_path(declares()))
    inner = jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda n: n is not tree and hasattr(n, "__declared__"))
    for path, node in inner:
        if hasattr(node, "__declared__"):
            found |= {(*path, *at): shape for at, shape in declared(node).items()}
    return found


def _check_kind(kind: Any, variant: Variant) -> None:
    """Check that the algorithm with this θ has a place for each of the variant's lines."""
    if variant.embedding.factored and kind is not ETransformerParams:
        raise ValueError(
            "variant.embedding.factored: expected False in Algorithms 8 and 10, which do not project X back to d_in "
            "rows, as line 10 of Algorithm 9 does, got True"
        )
    if not variant.first_norm and kind is EDTransformerParams:
        raise ValueError("variant.first_norm: expected True in Algorithm 8, whose layers are alike, got False")
    if variant.mtp and kind is not DTransformerParams:
        raise ValueError(f"variant.mtp: expected None in Algorithms 8 and 9, got {variant.mtp!r}")
    if (variant.layer_end or variant.lenders) and kind is not DTransformerParams:
        field = "attention.keys_of" if variant.lenders else "layer_end"
        raise ValueError(f"variant.{field}: expected None in Algorithms 8 and 9, whose layers are independent")
    for line in variant.attentions if kind is EDTransformerParams else ():
        if not line.reads_context:
            raise ValueError(
                "variant.attention: expected mixers that read a context in Algorithm 8, for its line 16, got "
                f"{type(line).__name__}"
            )


def theta_shapes(kind: Any, variant: Variant, config: Any = None, theta: Any = None) -> Any:
    """The shapes of θ, of the class ``kind``: Algorithm 8's, 9's or 10's; None for parameters that it does not have.

    The config decides what the variant leaves open: whether there are a W_u, token types and separate embeddings of the
    context, and how many layers. Without one, they are there, and there are as many layers as θ has.
    """
    fields = {"encoder": "L_enc", "decoder": "L_dec"} if kind is EDTransformerParams else {"layers": "L"}
    if variant.is_one_stack:
        numbers: list[Any] = [None] * len(fields)
    elif theta is None:
        numbers = [getattr(config, L, None) for L in fields.values()]
    else:  # None if malformed, which the check against these shapes reports
        of = [getattr(theta, field) for field in fields]
        is_counted = [type(layers) is tuple and all(map(jax.tree.leaves, layers)) for layers in of]
        numbers = [count_layers(a, variant) if counted else None for a, counted in zip(of, is_counted, strict=True)]
    shapes = _all_shapes(kind, variant, *numbers)
    if config is None:
        return shapes
    left_out = ["W_u"] * config.tied
    if kind is ETransformerParams:
        biases = getattr(config.variant.mlps[0], "biases", True)
        left_out += ["W_t"] * (not config.N_types) + ["b_f"] * (not biases)
    if kind is EDTransformerParams and config.N_V_z is None:
        left_out += ["context.W_e"]
    return _without(left_out, shapes)


def _without(names: Iterable[str], shapes: Any) -> Any:
    for name in names:
        field, _, inner = name.partition(".")
        rest = _without([inner], getattr(shapes, field)) if inner else None
        shapes = shapes._replace(**{field: rest if rest is not None and any(rest) else None})
    return shapes


@functools.lru_cache(maxsize=1024)
def _all_shapes(kind: Any, variant: Variant, *numbers: int | None) -> Any:
    """The shapes of all that θ may have, for these numbers of layers, which matter if they are several stacks."""
    _check_kind(kind, variant)
    embedding: Any = variant.embedding.shapes(variant.norm)
    final_norm = kind is DTransformerParams
    if variant.final_norm is not None:
        final_norm = variant.final_norm
    norm = variant.norm.shapes() if final_norm else None
    of_layers = (line.positions.of_layers() for line in variant.attentions if line.positions is not None)
    distances = next((shape for shape in of_layers if shape is not None), None)
    shapes: dict[str, Any] = {
        "W_e": embedding.W_e,
        "W_p": embedding.W_p,
        "embedding_norm": embedding.embedding_norm,
        "W_u": array("N_V d_f" if kind is ETransformerParams else "N_V d_e", role="unembedding"),
        "b_u": array("N_V", variant.unembedding.bias),
        "variant": variant,
    }
    if kind is DTransformerParams:
        layers: Any = _shapes_of_layers(TransformerLayerParams, variant, "L", numbers[0])
        projected, biases = variant.unembedding.projected, getattr(variant.mlps[0], "biases", True)
        head: dict[str, Any] = {"W_f": array("d_e d_e", projected), "b_f": array("d_e", projected and biases)}
        norm_f = variant.norm.shapes() if projected else None
        if variant.mtp:
            one, each = _shapes_of_layers(TransformerLayerParams, variant.of_mtp, "L_mtp", 1), variant.norm.shapes()
            head["mtp"] = MTPParams(each, each, array("d_e 2*d_e"), one, norm)
        head["layer_inputs"] = variant.layer_end and variant.layer_end.of_inputs()
        return DTransformerParams(**shapes, layers=layers, norm=norm, distances=distances, **head, norm_f=norm_f)
    if kind is ETransformerParams:
        return ETransformerParams(
            **shapes,
            layers=_shapes_of_layers(TransformerLayerParams, variant, "L", numbers[0]),
            W_f=array("d_f d_e", variant.head is True),
            b_f=array("d_f", variant.head is True),
            norm=variant.norm.shapes("d_f") if variant.head is True else None,
            W_t=array(f"{embedding.W_e.axes.split()[0]} N_types", role="embedding"),
            W_pool=array("d_e d_e", variant.pooler),
            b_pool=array("d_e", variant.pooler),
            distances=distances,
            encoder_norm=norm,
            W_in=array("d_e d_in", variant.embedding.factored),
            b_in=array("d_e", variant.embedding.factored),
        )
    W_p = embedding.W_p if variant.embedding.context_positions else None
    return EDTransformerParams(
        **shapes,
        encoder=_shapes_of_layers(TransformerLayerParams, variant, "L_enc", numbers[0]),
        decoder=_shapes_of_layers(EDDecoderLayerParams, variant, "L_dec", numbers[1]),
        context=embedding._replace(W_e=array("d_e N_V_z", role="embedding"), W_p=W_p),
        encoder_norm=norm,
        decoder_norm=norm,
        encoder_distances=distances,
        decoder_distances=distances,
    )


def _shapes_of_layers(kind: Any, variant: Variant, L: str, n: int | None) -> Layers:
    """The shapes of n stacked layers: attentions and, unless there is none, an MLP, each with its norm."""
    norm = variant.norm.shapes()

    def stack(axis, run):
        *of_attention, mlp, norm_of_mlp = run.layers[0].shapes(norm)
        layer = kind(*of_attention * (len(kind._fields) // 2 - 1), mlp, norm_of_mlp)
        layer = layer if variant.layer_end is None else layer._replace(end=variant.layer_end.shapes())
        return jax.tree.map(lambda s: dataclasses.replace(s, axes=f"{axis} {s.axes}"), layer)

    runs = tuple(itertools.chain(*variant.parts(n)))
    return stack(L, runs[0]) if variant.is_one_stack else tuple(stack(f"{L}_{i}", run) for i, run in enumerate(runs))


MAY_LACK = {
    DTransformerParams: ("W_u",),
    # any encoder may be bare, ending with line 9, and most functions do not use the pooler
    ETransformerParams: ("W_u", "W_t", "W_f", "b_f", "norm", "b_u", "W_pool", "b_pool"),
    EDTransformerParams: ("W_u", "context"),
}
"""Parameters that may be None, whatever the variant."""
