"""θ of Algorithms 8, 9 and 10: parameters, the variant whose lines they belong to, and the shapes that these have.

Initializers, checks, counts and the mesh derive from the shapes.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
from jax import Array

from algorithms.machinery.contract import Shape, array
from algorithms.machinery.record import serializable
from algorithms.model.distances import Distances
from algorithms.model.variant import Variant
from algorithms.model.variants import PAPER
from algorithms.parameters import (
    EDDecoderLayerParams,
    EmbeddingParams,
    LayerNormParams,
    MLPParams,
    TransformerLayerParams,
)


@serializable
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

    def __shapes__(self) -> "EDTransformerParams":
        return shapes_of(self)

    def __declared__(self) -> Any:
        return theta_shapes(type(self), self.variant)


@serializable
class ETransformerParams(NamedTuple):
    """θ of Algorithm 9. Fields from ``embedding_norm`` on are not in the paper: BERT, ALBERT and others add them.

    ``W_p`` is None if the variant has no learned positions, and ``W_u`` if it is tied, W_u = W_eᵀ (then d_f = d_in). A
    bare encoder, which ends with line 9, has no W_f, b_f, norm and W_u. W_t embeds token types; W_pool and b_pool
    project the first token's encoding for classifiers. Embeddings have d_in = d_e rows, unless W_in and b_in project
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
    variant: Variant = PAPER

    def __shapes__(self) -> "ETransformerParams":
        return shapes_of(self)

    def __declared__(self) -> Any:
        return theta_shapes(type(self), self.variant)


@serializable
class DTransformerParams(NamedTuple):
    """θ of Algorithm 10. ``W_p`` is None if the variant has no learned positions, ``W_u`` if it is tied, W_u = W_eᵀ.

    Not in the paper: ``b_u``, an output bias; ``embedding_norm``, which follows the embeddings; ``distances``, which
    are added to the scores of all layers whose attention has `Distances`, as in T5; and ``first_mlp``, the MLPs of the
    first layers if the variant has others there, of which ``layers.mlp`` then has the rest.
    """

    W_e: Array
    W_p: Array | None
    layers: TransformerLayerParams
    norm: LayerNormParams | None
    W_u: Array | None
    b_u: Array | None = None
    embedding_norm: LayerNormParams | None = None
    distances: Array | None = None
    first_mlp: MLPParams | None = None
    variant: Variant = PAPER

    def __shapes__(self) -> "DTransformerParams":
        return shapes_of(self)

    def __declared__(self) -> Any:
        return theta_shapes(type(self), self.variant)


def declared(tree: Any) -> dict[Any, Shape]:
    """The `Shape` that a line declares for each array of parameters, or of gradients or an optimizer's state, by path.

    The method ``__declared__`` of parameters has the shapes of their arrays, but not of parameters in them that have
    that method, too. There may be more shapes than arrays: those of what a tree lacks.
    """
    declares = getattr(tree, "__declared__", None)
    found = {} if declares is None else dict(jax.tree_util.tree_leaves_with_path(declares()))
    inner = jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda n: n is not tree and hasattr(n, "__declared__"))
    for path, node in inner:
        if hasattr(node, "__declared__"):
            found |= {(*path, *at): shape for at, shape in declared(node).items()}
    return found


def theta_shapes(kind: Any, variant: Any, config: Any = None) -> Any:
    """The shapes of θ, of the class ``kind``: Algorithm 8's, 9's or 10's; None for parameters that it does not have.

    The config decides what the variant leaves open: whether there are a W_u, token types and separate embeddings of the
    context. Without one, they are there.
    """
    if variant.embedding.factored and kind is not ETransformerParams:
        raise ValueError(
            "variant.embedding.factored: expected False in Algorithms 8 and 10, which do not project X back to d_in "
            "rows, as line 10 of Algorithm 9 does, got True"
        )
    first = variant.first
    if first is not None and kind is not DTransformerParams:
        raise ValueError("variant.first: expected None in Algorithms 8 and 9, whose layers are all alike, got a First")
    embedding, final_norm = variant.embedding.shapes(variant.norm), kind is DTransformerParams
    if variant.final_norm is not None:
        final_norm = variant.final_norm
    norm = variant.norm.shapes() if final_norm else None
    distances = array("H N_buckets", any(isinstance(line.positions, Distances) for line in variant.attentions))
    shapes: dict[str, Any] = {
        "W_e": embedding.W_e,
        "W_p": embedding.W_p,
        "embedding_norm": embedding.embedding_norm,
        "W_u": array(
            "N_V d_f" if kind is ETransformerParams else "N_V d_e",
            config is None or not config.tied,
            role="unembedding",
        ),
        "b_u": array("N_V", variant.unembedding.bias),
        "variant": variant,
    }
    layers = _layers(variant, TransformerLayerParams, "L")
    if kind is DTransformerParams:
        first_mlp = first and first.shapes()
        return DTransformerParams(**shapes, layers=layers, norm=norm, distances=distances, first_mlp=first_mlp)
    if kind is ETransformerParams:
        return ETransformerParams(
            **shapes,
            layers=layers,
            W_f=array("d_f d_e", variant.head),
            b_f=array("d_f", variant.head),
            norm=variant.norm.shapes("d_f") if variant.head else None,
            W_t=array(f"{embedding.W_e.axes.split()[0]} N_types", config is None or config.N_types, role="embedding"),
            W_pool=array("d_e d_e", variant.pooler),
            b_pool=array("d_e", variant.pooler),
            distances=distances,
            W_in=array("d_e d_in", variant.embedding.factored),
            b_in=array("d_e", variant.embedding.factored),
        )
    context = embedding._replace(
        W_e=array("d_e N_V_z", config is None or config.N_V_z, role="embedding"),
        W_p=embedding.W_p if variant.embedding.context_positions else None,
    )
    return EDTransformerParams(
        **shapes,
        encoder=_layers(variant, TransformerLayerParams, "L_enc"),
        decoder=_layers(variant, EDDecoderLayerParams, "L_dec"),
        context=context if any(shape is not None for shape in context) else None,
        encoder_norm=norm,
        decoder_norm=norm,
        encoder_distances=distances,
        decoder_distances=distances,
    )


def _layers(variant: Any, kind: Any, L: str) -> Any:
    """The shapes of layers, stacked along L: attentions and, unless there is none, an MLP, each with its norm.

    Of MLPs there are fewer if the first layers have others.
    """
    norm = None if variant.order == "no_norm" else variant.norm.shapes()
    attentions = [variant.attentions[0].shapes(), norm] * (len(kind._fields) // 2 - 1)
    mlp = (None, None) if variant.mlp is None else (variant.mlp.shapes(), norm)

    def stacked(shapes, L):
        return jax.tree.map(lambda s: dataclasses.replace(s, axes=f"{L} {s.axes}"), shapes)

    layers = stacked(kind(*attentions, *mlp), L)
    return layers if variant.first is None else layers._replace(mlp=stacked(mlp[0], f"{L}-{variant.first.n}"))


MAY_LACK = {
    DTransformerParams: ("W_u",),
    # any encoder may be bare, ending with line 9, and most functions do not use the pooler
    ETransformerParams: ("W_u", "W_t", "W_f", "b_f", "norm", "b_u", "W_pool", "b_pool"),
    EDTransformerParams: ("W_u", "context"),
}
"""What a θ may lack, whatever its variant."""


def shapes_of(theta: Any) -> Any:
    """The shapes of this θ.

    Raises TypeError if its variant is none, ValueError for a parameter that is missing or superfluous, with its path
    and what was expected there.
    """
    if not isinstance(theta.variant, Variant):
        raise TypeError(f"theta.variant: expected a Variant such as PAPER, got {theta.variant!r}")
    shapes = _without(MAY_LACK[type(theta)], theta_shapes(type(theta), theta.variant), theta)
    if getattr(shapes, "context", None) is not None:
        shapes = shapes._replace(context=_without(EmbeddingParams._fields, shapes.context, theta.context))
    _check_present("theta", theta, shapes, theta.variant)
    _check_own_sizes(theta, shapes)
    return shapes


def own_sizes(variant: Variant) -> dict[str, int]:
    """The sizes of the axes that the variant's lines have and configurations do not, by name."""
    lines = (*variant.attentions, variant.mlp, variant.first)
    return {name: size for line in lines if line for name, size in line.sizes().items()}


def _check_own_sizes(theta: Any, shapes: Any) -> None:
    """Check the sizes that the variant's lines give to axes of their own."""
    sizes = own_sizes(theta.variant)
    arrays = dict(jax.tree_util.tree_leaves_with_path(theta)) if sizes else {}
    for path, shape in jax.tree_util.tree_leaves_with_path(shapes) if sizes else ():
        found = getattr(arrays.get(path), "shape", ())
        for axis, size in zip(shape.axes.split(), found, strict=False):
            if sizes.get(axis, size) != size:
                raise ValueError(
                    f"theta{jax.tree_util.keystr(path)}: expected {axis} = {sizes[axis]}, as the variant's line has "
                    f"it, in [{', '.join(shape.axes.split())}], got {list(found)}; use the variant that these "
                    "parameters were made for"
                )


def _without(names: tuple[str, ...], shapes: Any, theta: Any) -> Any:
    return shapes._replace(**{name: None for name in names if getattr(theta, name) is None})


def _check_present(path: str, value: Any, shapes: Any, variant: Variant) -> None:
    if value is None and getattr(shapes, "may_lack", False):
        return
    if (value is None) != (shapes is None):
        array = f"an array [{', '.join(shapes.axes.split())}]" if isinstance(shapes, Shape) else type(shapes).__name__
        expected, found = (array, "None") if value is None else ("None", "parameters")
        raise ValueError(
            f"{path}: expected {expected} in {variant!r}, got {found}; use the variant that these parameters were made "
            "for"
        )
    for name in getattr(shapes, "_fields", ()) if isinstance(value, type(shapes)) else ():
        _check_present(f"{path}.{name}", getattr(value, name), getattr(shapes, name), variant)
