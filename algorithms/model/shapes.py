"""The specification of a variant's parameters: its lines say which exist, the annotations say with which axes.

A specification has the structure of θ, with a `Parameter` for each array, including those that are None. Initializers,
the check of θ, and the counts of parameters and floating-point operations derive from it.
"""

import dataclasses
import itertools
import typing
from collections.abc import Mapping
from typing import Any

import jax

from algorithms.model.line import Line
from algorithms.parameters import (
    NORMS_OF_ALL_HEADS,
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
    given: bool | None = True  # whether θ has it; None: either way
    since: str = dataclasses.field(default="", compare=False)  # why, for messages
    start: float = 0.0  # initial value of a vector's entries


def annotated_axes(annotation: Any) -> tuple[str, ...] | None:
    """The names of the axes in a jaxtyping annotation, with or without ``| None``; None if there is no array in it."""
    if typing.get_origin(annotation) is typing.Annotated:
        inner, *notes = typing.get_args(annotation)
        return next((axes for a in (inner, *notes) if (axes := annotated_axes(a)) is not None), None)
    for kind in typing.get_args(annotation) or (annotation,):
        if hasattr(kind, "dim_str"):
            return tuple(kind.dim_str.split())
    return None


def _made(kind: Any, *lines: Line, stack: tuple[str, ...] = (), axes: Mapping[str, str] = {}, **nested: Any) -> Any:
    """The specification of a class of parameters. Whether it has a field is decided by the first line that lists it
    among its ``optional`` ones. ``stack`` are axes in front, ``axes`` renames others, ``nested`` are finished fields.
    """
    fields = dict(nested)
    for name, annotation in kind.__annotations__.items():
        if name in nested:
            continue
        given, since = next((line.has(name) for line in lines if name in line.optional), (True, ""))
        shared = tuple("H_kv" if axis == "H" else axis for axis in stack)
        stacks = {"*stack": stack, "*stack_kv": shared}
        own = [stacks.get(axis, (axes.get(axis, axis),)) for axis in annotated_axes(annotation) or ()]
        fields[name] = Parameter(tuple(itertools.chain(*own)), given, since)
    return kind(**fields)


def _absent(since: str = "") -> Parameter:
    return Parameter(given=False, since=since)


def _norm(line: Any, d: str = "d_e", decided: tuple[bool, str] = (True, "")) -> Any:
    given, since = decided
    if not given:
        return _absent(since)
    shapes = _made(LayerNormParams, line, axes={"d_normalized": d})
    return shapes._replace(gamma=dataclasses.replace(shapes.gamma, start=1.0 - getattr(line, "offset", 0.0)))


def _positions(line: Any) -> tuple[Line, ...]:
    return () if line.positions is None else (line.positions,)


def attention_shapes(line: Any) -> Any:
    """The specification of the parameters of an attention line."""
    residual = {"d_x": "d_e", "d_z": "d_e", "d_out": "d_e"}
    norms = NORMS_OF_ALL_HEADS if line.heads_together else NORMS_OF_HEADS
    heads = _made(AttentionParams, line, stack=("H",), axes=residual)
    norm_out = _norm(line.normalize_output, decided=line.has("norm_out"))
    shapes = _made(MHAttentionParams, *_positions(line), line, axes=residual | norms, heads=heads, norm_out=norm_out)
    start = 1.0 - (line.normalize_heads.offset if line.normalize_heads else 0.0)
    starting = {name: dataclasses.replace(getattr(shapes, name), start=start) for name in ("gamma_q", "gamma_k")}
    return shapes._replace(**starting)


def mlp_shapes(line: Any) -> Any:
    """The specification of the parameters of an MLP line; a single absent one if it is None."""
    if line is None:
        return _absent("Variant has mlp = None")
    return _made(MLPParams, line, norm_out=_norm(line.normalize_output, decided=line.has("norm_out")))


def _layers(variant: Any, kind: Any, axis: str) -> Any:
    """The specification of layers, stacked along an axis; their fields are the MLP, norms and attentions."""
    norms = [name for name in kind._fields if name.startswith("norm")]
    norm = _norm(variant.norm, decided=(variant.order != "no_norm", "Variant has order = 'no_norm'"))
    fields = dict.fromkeys(kind._fields, attention_shapes(variant.attentions[0])) | dict.fromkeys(norms, norm)
    fields["mlp"] = mlp_shapes(variant.mlp)
    if variant.mlp is None:
        fields[norms[-1]] = fields["mlp"]  # no MLP, no norm of it
    return jax.tree.map(lambda p: dataclasses.replace(p, axes=(axis, *p.axes)), kind(**fields))


def _final_norm(variant: Any, *, by_default: bool) -> Any:
    given = by_default if variant.final_norm is None else variant.final_norm
    return _norm(variant.norm, decided=(given, f"Variant has final_norm = {variant.final_norm}"))


def _rows_of_embeddings(variant: Any) -> str:
    return "d_in" if variant.embedding.factored else "d_e"


def shapes_of(kind: Any, variant: Any, config: Any = None) -> Any:
    """The specification of θ, of the class ``kind``: Algorithm 8's, 9's or 10's. The config decides what the variant
    leaves open: whether there are a W_u, token types and separate embeddings of the context; None leaves it open.
    """
    if variant.embedding.factored and "W_in" not in kind._fields:
        raise ValueError(
            "variant.embedding.factored: expected False in Algorithms 8 and 10, which do not project X back to d_in "
            "rows, as line 10 of Algorithm 9 does, got True"
        )
    lines = variant.unembedding, variant.embedding, *_positions(variant.attentions[0]), variant
    embedding_norm = _norm(variant.norm, _rows_of_embeddings(variant), variant.embedding.has("embedding_norm"))
    shapes = _OF[kind](variant, lines, embedding_norm)
    return _opened(shapes) if config is None else _decided(shapes, variant, config)


def _of_d(variant, lines, embedding_norm) -> Any:
    layers, norm = _layers(variant, TransformerLayerParams, "L"), _final_norm(variant, by_default=True)
    return _made(DTransformerParams, *lines, layers=layers, norm=norm, embedding_norm=embedding_norm)


def _of_e(variant, lines, embedding_norm) -> Any:
    layers, norm = _layers(variant, TransformerLayerParams, "L"), _norm(variant.norm, "d_f", variant.has("norm"))
    axes = {"d_in": _rows_of_embeddings(variant)}
    return _made(ETransformerParams, *lines, axes=axes, layers=layers, norm=norm, embedding_norm=embedding_norm)


def _of_ed(variant, lines, embedding_norm) -> Any:
    final = _final_norm(variant, by_default=False)
    context = _made(EmbeddingParams, *lines, embedding_norm=embedding_norm)
    return _made(
        EDTransformerParams,
        *lines,
        encoder=_layers(variant, TransformerLayerParams, "L_enc"),
        decoder=_layers(variant, EDDecoderLayerParams, "L_dec"),
        context=context,
        embedding_norm=embedding_norm,
        encoder_norm=final,
        decoder_norm=final,
    )


_OF: dict[type, Any] = {DTransformerParams: _of_d, ETransformerParams: _of_e, EDTransformerParams: _of_ed}


def _opened(shapes: Any) -> Any:
    """The specification of θ for any configuration."""
    either_way = ["W_u"]
    if isinstance(shapes, EDTransformerParams):
        either_way.append("context")
    if isinstance(shapes, ETransformerParams):
        # any encoder may be bare, ending with line 9, and most functions do not use the pooler
        may_lack = ("W_f", "b_f", "norm", "b_u", "W_pool", "b_pool")
        either_way += ["W_t", *(name for name in may_lack if jax.tree.leaves(getattr(shapes, name))[0].given)]
    return shapes._replace(**dict.fromkeys(either_way, Parameter(given=None)))


def _decided(shapes: Any, variant: Any, config: Any) -> Any:
    """The specification of θ for this configuration."""
    absent = _absent()
    decided: dict[str, Any] = {"W_u": absent} if config.tied else {}
    if isinstance(shapes, ETransformerParams) and not config.N_types:
        decided["W_t"] = absent
    if isinstance(shapes, EDTransformerParams):
        context: Any = shapes.context
        W_e = dataclasses.replace(context.W_e, axes=("d_e", "N_V_z"), given=bool(config.N_V_z))
        W_p = shapes.W_p if variant.embedding.has("context_positions")[0] else absent
        context = context._replace(W_e=W_e, W_p=W_p)
        decided["context"] = context if any(p.given for p in jax.tree.leaves(context)) else absent
    return shapes._replace(**decided)


def check_present(theta: Any, variant: Any) -> None:
    """Check that θ has exactly the parameters that the variant's lines need.

    Raises:
        ValueError: for a parameter that is missing or superfluous, with its path, what was expected there, and why.
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
