"""The parameters of a variant: which there are, by its lines, and their axes, by their annotations.

A tree of `Parameter` has the structure of θ, with a leaf where θ has None. Initializers, the check of θ, the counts of
parameters and of floating-point operations, and the table of the mesh follow from it.
"""

import dataclasses
import itertools
import typing
from collections.abc import Mapping
from typing import Any

import jax

from algorithms.model.line import Line
from algorithms.parameters import (
    NORMS_OF_HEADS,
    AttentionParams,
    DTransformerParams,
    EDDecoderLayerParams,
    EDTransformerParams,
    EmbeddingParams,
    ETransformerParams,
    LayerNormParams,
    MHAttentionParams,
    MLPParams,
    TransformerLayerParams,
)


@dataclasses.dataclass(frozen=True)
class Parameter:
    """The specification of one array of θ."""

    axes: tuple[str, ...] = ()  # their names; ``H*d_mid`` is a product
    given: bool | None = True  # whether θ has it; None: the lines leave that open
    since: str = dataclasses.field(default="", compare=False)  # the fields that decide it, for messages
    start: float = 0.0  # of a vector: the value that all its entries start with


def annotated_axes(annotation: Any) -> tuple[str, ...] | None:
    """The names of the axes that a jaxtyping annotation says, with or without ``| None``; None if it is of no array."""
    if typing.get_origin(annotation) is typing.Annotated:
        inner, *notes = typing.get_args(annotation)
        return next((axes for a in (inner, *notes) if (axes := annotated_axes(a)) is not None), None)
    for kind in typing.get_args(annotation) or (annotation,):
        if hasattr(kind, "dim_str"):
            return tuple(kind.dim_str.split())
    return None


def _made(kind: Any, *lines: Line, stack: tuple[str, ...] = (), axes: Mapping[str, str] = {}, **nested: Any) -> Any:
    """The parameters of a class: the first of the lines that its fields belong to that has an opinion decides.
    `stack` are the axes in front, `axes` other names of some, and `nested` fields that are not arrays, or are known
    already.
    """
    fields = {}
    for name, annotation in kind.__annotations__.items():
        if name in nested:
            fields[name] = nested[name]
            continue
        given, since = next((line.has(name) for line in lines if name in line.optional), (True, ""))
        shared = tuple("H_kv" if axis == "H" else axis for axis in stack)
        stacks = {"*stack": stack, "*stack_kv": shared}
        own = [stacks.get(axis, (axes.get(axis, axis),)) for axis in annotated_axes(annotation) or ()]
        fields[name] = Parameter(tuple(itertools.chain(*own)), given, since)
    return kind(**fields)


def _norm(line: Any, d: str) -> Any:
    shapes = _made(LayerNormParams, line, axes={"d_normalized": d})
    return shapes._replace(gamma=dataclasses.replace(shapes.gamma, start=1.0 - getattr(line, "offset", 0.0)))


def _output_norm(line: Any, d: str) -> Any:
    given, since = line.has("norm_out")
    return _norm(line.normalize_output, d) if given else Parameter(given=False, since=since)


def _positions(line: Any) -> tuple[Line, ...]:
    return () if line.positions is None else (line.positions,)


def attention_shapes(line: Any) -> Any:
    """The parameters of an attention of the residual stream."""
    residual = {"d_x": "d_e", "d_z": "d_e", "d_out": "d_e"}
    heads = _made(AttentionParams, line, stack=("H",), axes=residual)
    lines = *_positions(line), line
    together = {"d_norm_q": "H*d_attn", "d_norm_k": "H_kv*d_attn"} if line.heads_together else NORMS_OF_HEADS
    nested = {"heads": heads, "norm_out": _output_norm(line, "d_e")}
    shapes = _made(MHAttentionParams, *lines, axes=residual | together, **nested)
    start = 1.0 - (line.normalize_heads.offset if line.normalize_heads else 0.0)
    starting = {name: dataclasses.replace(getattr(shapes, name), start=start) for name in ("gamma_q", "gamma_k")}
    return shapes._replace(**starting)


def mlp_shapes(line: Any) -> Any:
    """The parameters of an MLP; a single absent one where the line is None."""
    if line is None:
        return Parameter(given=False, since="Variant has mlp = None")
    return _made(MLPParams, line, norm_out=_output_norm(line, "d_e"))


def _layer(variant: Any, kind: Any, norms: tuple[str, ...], attentions: tuple[str, ...]) -> Any:
    norm = _norm(variant.norm, "d_e")
    if variant.order == "no_norm":
        norm = Parameter(given=False, since="Variant has order = 'no_norm'")
    attention = attention_shapes(variant.attentions[0])
    mlp = mlp_shapes(variant.mlp)
    of_norms = dict.fromkeys(norms, norm) | ({norms[-1]: mlp} if variant.mlp is None else {})  # no MLP, no norm of it
    return kind(**of_norms, **dict.fromkeys(attentions, attention), mlp=mlp)


def _stacked(axis: str, shapes: Any) -> Any:
    return jax.tree.map(lambda p: dataclasses.replace(p, axes=(axis, *p.axes)), shapes)


def _layers(variant: Any, axis: str) -> Any:
    return _stacked(axis, _layer(variant, TransformerLayerParams, ("norm1", "norm2"), ("attention",)))


def _norm_if(decided: tuple[bool, str], variant: Any, d: str = "d_e") -> Any:
    given, since = decided
    return _norm(variant.norm, d) if given else Parameter(given=False, since=since)


OPEN = Parameter(given=None)


def _rows_of_embeddings(variant: Any) -> str:
    return "d_in" if variant.embedding.factored else "d_e"


def shapes_of(kind: Any, variant: Any, config: Any = None) -> Any:
    """θ of Algorithm 8, 9 or 10, a class, as `Parameter`s. The config decides what the lines of the variant leave
    open: a W_u of its own, token types and other sizes of the context; None leaves it open.
    """
    if variant.embedding.factored and "W_in" not in kind._fields:
        raise ValueError(
            "variant.embedding.factored: expected False in Algorithms 8 and 10, which have no projection back to d_in "
            "rows as line 10 of Algorithm 9 is, got True"
        )
    lines = variant.unembedding, variant.embedding, *_positions(variant.attentions[0]), variant
    embedding_norm = _norm_if(variant.embedding.has("embedding_norm"), variant, _rows_of_embeddings(variant))
    shapes = _OF[kind](variant, lines, embedding_norm)
    return _opened(shapes) if config is None else _decided(shapes, variant, config)


def _of_d(variant, lines, embedding_norm) -> Any:
    norm = _norm_if((variant.final_norm is not False, f"Variant has final_norm = {variant.final_norm}"), variant)
    return _made(DTransformerParams, *lines, layers=_layers(variant, "L"), norm=norm, embedding_norm=embedding_norm)


def _of_e(variant, lines, embedding_norm) -> Any:
    norm = _norm_if(variant.has("norm"), variant, "d_f")
    own = {"layers": _layers(variant, "L"), "norm": norm, "embedding_norm": embedding_norm}
    return _made(ETransformerParams, *lines, axes={"d_in": _rows_of_embeddings(variant)}, **own)


def _of_ed(variant, lines, embedding_norm) -> Any:
    norms, attentions = ("norm3", "norm4", "norm5"), ("self_attention", "cross_attention")
    final = _norm_if((bool(variant.final_norm), f"Variant has final_norm = {variant.final_norm}"), variant)
    context = _made(EmbeddingParams, *lines, embedding_norm=embedding_norm)
    return _made(
        EDTransformerParams,
        *lines,
        encoder=_layers(variant, "L_enc"),
        decoder=_stacked("L_dec", _layer(variant, EDDecoderLayerParams, norms, attentions)),
        context=context,
        embedding_norm=embedding_norm,
        encoder_norm=final,
        decoder_norm=final,
    )


_OF: dict[type, Any] = {DTransformerParams: _of_d, ETransformerParams: _of_e, EDTransformerParams: _of_ed}


def _opened(shapes: Any) -> Any:
    """The tree, with everything left open that a configuration decides."""
    open_fields = {"W_u": OPEN}
    if isinstance(shapes, EDTransformerParams):
        open_fields["context"] = OPEN
    if isinstance(shapes, ETransformerParams):
        open_fields["W_t"] = OPEN
        # A bare encoder has lines 1 to 9 of any, and no pooler reads them in most functions.
        may_lack: dict[str, Any] = {name: getattr(shapes, name) for name in ("W_f", "b_f", "b_u", "W_pool", "b_pool")}
        open_fields |= {name: OPEN for name, parameter in may_lack.items() if parameter.given}
        open_fields |= {"norm": OPEN} if may_lack["W_f"].given else {}
    return shapes._replace(**open_fields)


def _decided(shapes: Any, variant: Any, config: Any) -> Any:
    absent = Parameter(given=False)
    decided: dict[str, Any] = {"W_u": absent} if config.tied else {}
    if isinstance(shapes, ETransformerParams) and not config.N_types:
        decided["W_t"] = absent
    if isinstance(shapes, EDTransformerParams):
        given: Any = shapes.context
        own_table = given.W_e if config.N_V_z else absent
        own_positions = shapes.W_p if variant.embedding.has("context_positions")[0] else absent
        context = given._replace(W_e=own_table, W_p=own_positions)
        context = context._replace(W_e=dataclasses.replace(context.W_e, axes=("d_e", "N_V_z")))
        decided["context"] = context if any(p.given for p in jax.tree.leaves(context)) else absent
    return shapes._replace(**decided)


def check_present(theta: Any, variant: Any) -> None:
    """Refuse parameters that were not made for this variant: one of its lines lacks an array, or has one too many.

    Raises:
        ValueError: with the path of the parameter, what was expected there, and why.
    """
    if type(theta) in _OF:
        _check_present("theta", theta, shapes_of(type(theta), variant))


def _check_present(path: str, value: Any, said: Any) -> None:
    if isinstance(said, Parameter):
        if said.given is None or said.given == (value is not None):
            return
        expected = f"an array [{', '.join(said.axes)}]" if said.given else "None"
        found = "None" if value is None else "parameters"
    elif value is None:
        expected, found = type(said).__name__, "None"
    else:
        for name in said._fields:
            _check_present(f"{path}.{name}", getattr(value, name), getattr(said, name))
        return
    since = f", since {said.since}" if isinstance(said, Parameter) and said.since else ""
    raise ValueError(
        f"{path}: expected {expected}{since}, got {found}; use the variant that these parameters were made for"
    )
