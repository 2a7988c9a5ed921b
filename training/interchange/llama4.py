"""Llama 4's text model, by changed lines: chunks in layers with positions, a temperature in others, experts in some."""

from collections.abc import Sequence
from typing import Any

from algorithms import LLAMA
from algorithms.lines import Attention, Experts, RMSNorm, Rotary, Temperature, Yarn
from training.interchange.decoders import of_lines
from training.interchange.description import Field, Fields, Layers, Model, every, in_turn
from training.interchange.errors import InterchangeError
from training.interchange.experts import OURS, PARTS
from training.interchange.mapping import rows
from training.interchange.rotary import FULL, Positions, rotary_fields

KIND = "llama4_text"
CHUNKED = "chunked_attention"


def _read(fields: Fields, found: dict[str, Any], names: Sequence[Any], kind: str) -> None:
    L, experts = found["L"], found["mlp"]
    d_mlp = found.pop("d_mlp_alone")
    mlp: Any = LLAMA.mlp
    mlp = mlp.but(activation=experts.activation, d_mlp=None if d_mlp == found["d_mlp"] else d_mlp)
    has_experts = _layers_with_experts(fields, L)
    found["attention"] = in_turn(_attentions(fields, found, L))
    found["mlp"] = in_turn([experts if l in has_experts else mlp for l in range(L)])


def _attentions(fields: Fields, found: dict[str, Any], L: int) -> list[Attention]:
    """Return the attention of each layer."""
    rotary = found.pop("attention.positions")
    norm = RMSNorm(epsilon=found["norm.epsilon"], gamma=False) if fields.flag("use_qk_norm", True) else None
    if norm and isinstance(rotary.scaling, Yarn):
        fields.needs.append("a norm of queries and keys after a rotation that scales them (use_qk_norm with yarn)")
    temperature = Temperature(c=fields.number("attn_scale", 0.1), n=fields.integer("floor_scale", 8192))
    grows = bool(fields.get("attn_temperature_tuning", True))  # 4 in the first files
    line = Attention(biases=fields.flag("attention_bias", False))
    of_placed = line.but(positions=rotary, normalize_heads=norm)
    of_others = line.but(positions=temperature if grows else None)
    flags = Layers(every(4, "no_rope_layer_interval", (1, 0)), "no_rope_layers", none_if_empty=True)
    placed = flags.of(fields, L, [0, 1])
    width = fields.get("attention_chunk_size", None if fields.has("attention_chunk_size") else 8192)
    width = width and fields.integer("attention_chunk_size", 8192)
    layers = Layers(lambda *_: [CHUNKED if has and width else FULL for has in placed])
    types = layers.of(fields, L, [CHUNKED, FULL])
    lines = [of_placed if has else of_others for has in placed]
    return [
        line.but(window=width, chunked=True) if kind == CHUNKED else line
        for line, kind in zip(lines, types, strict=True)
    ]


def _layers_with_experts(fields: Fields, L: int) -> list[int]:
    """Return the numbers of the layers with experts, from 0."""
    step = fields.integer("interleave_moe_layer_step", 1)
    numbers = fields.get("moe_layers", list(range(step - 1, L, step)))
    if not isinstance(numbers, list) or not set(numbers) <= set(range(L)):
        raise InterchangeError(
            f"{fields.path}: moe_layers: expected numbers of layers from 0 to {L - 1}, got {str(numbers)[:60]}"
        )
    return numbers


def _write(model: Model, state: dict[str, Any], kind: str) -> list[str]:
    c = model.config
    lines = [c.variant.lines(l) for l in range(c.L)]
    experts = [l for l, line in enumerate(lines) if isinstance(line.mlp, Experts)]
    mlp = next((line.mlp for line in lines if line.mlp and not isinstance(line.mlp, Experts)), None)
    placed = [isinstance(line.attention.positions, Rotary) for line in lines]
    chunks = [line.attention.window for line in lines]
    rotary = lines[placed.index(True)].attention if True in placed else None
    grows = next((p for line in lines if isinstance(p := line.attention.positions, Temperature)), None)
    state |= {"moe_layers": experts, "interleave_moe_layer_step": experts[0] + 1 if experts else 1}
    state |= {"intermediate_size": c.d_mlp, "intermediate_size_mlp": (mlp and mlp.d_mlp) or c.d_mlp}
    state["rope_parameters"] = rotary_fields(rotary and rotary.positions)
    state["use_qk_norm"] = rotary is not None and rotary.normalize_heads is not None
    state["no_rope_layers"] = list(map(int, placed))
    state["layer_types"] = [FULL if width is None else CHUNKED for width in chunks]
    state["attention_chunk_size"] = next((width for width in chunks if width), None)
    state["attn_temperature_tuning"] = grows is not None
    state |= {"attn_scale": grows.c, "floor_scale": grows.n} if grows else {}
    state["attention_bias"] = lines[0].attention.biases is True
    return []


KINDS = {
    KIND: of_lines(
        f"{KIND} Llama4 LLAMA4",
        Field("intermediate_size_mlp", "d_mlp_alone", 16_384),
        positions=[Positions(base=500_000.0, pairs="neighbors")],
        biases=(),
        H_kv=8,
        d_head=128,
        lines={},
        modules=("self_attn", "feed_forward"),
        tensors=rows("model.layers.#.feed_forward.shared_expert", PARTS, "layers.mlp.shared", OURS),
        read=_read,
        write=_write,
        in_turn=True,
    )
}
"""By model_type."""
