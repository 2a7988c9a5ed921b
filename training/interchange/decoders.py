"""Llama, Mistral, Qwen, OLMo 2, SmolLM3, Gemma and gpt-oss, as Algorithm 10 with changed lines; some have experts.

They differ in a few fields of config.json and in where their norms are, so one mapping reads and writes them all: the
directories of transformers (with the rotary fields of its versions 4 and 5) and GGUF files.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from algorithms.lines import MLP, Attention, Embedding, Linear, Llama3, RMSNorm, Rotary, Yarn
from algorithms.model.variants import PAPER
from training.interchange.description import Architecture, Field, Fields, Model, Need, fields_of, theirs, written
from training.interchange.errors import InterchangeError
from training.interchange.mapping import HEADS, rows
from training.interchange.mixtures import MIXTURES, OURS, mixture_fields, mixture_table, read_mixture

SLIDING, FULL = "sliding_attention", "full_attention"
BASES = {"gemma3_text": 1_000_000.0, "smollm3": 2_000_000.0, "mixtral": 1_000_000.0, "gpt_oss": 150_000.0}
"""Of the wavelengths of rotary positions, in files that do not say."""
SIZES = "N_V l_max L H d_e d_mlp"
OF_SIZES = "vocab_size max_position_embeddings num_hidden_layers num_attention_heads hidden_size intermediate_size"
"""Our names of sizes, and the fields', which have no defaults."""
OUTPUT_NORMS = "post_attention_layernorm post_feedforward_layernorm"
OUTER = {"model.norm.*": "norm.*", "lm_head.weight": "W_u"}
"""The tensors after the layers."""


_LONG, _L_MAX = "original_max_position_embeddings", lambda found: found["l_max"]
_LLAMA3 = "factor low high l_original", f"factor low_freq_factor high_freq_factor {_LONG}", 1.0, 1.0, 4.0, _L_MAX
_YARN = "factor slow fast l_original truncate", f"factor beta_slow beta_fast {_LONG} truncate", 1.0, 1.0, 32.0, _L_MAX
SCALINGS: dict[str, tuple[Any, list[Field]]] = {
    "default": (type(None), []),
    "linear": (Linear, fields_of("factor", "factor", 1.0)),
    "llama3": (Llama3, fields_of(*_LLAMA3)),
    "yarn": (Yarn, fields_of(*_YARN, True)),
}
"""By rope_type: our line, and its fields."""


class Family(NamedTuple):
    """Properties of all models of a `model_type`, including those that their config.json may omit."""

    name: str  # of the class, without ForCausalLM
    biases: Literal["qkv"] | None = None  # of queries, keys and values; None: attention_bias decides
    normalizes_heads: bool = False  # whether queries and keys are normalized
    gemma: bool = False  # whether norms store γ − 1, embeddings are scaled, and GELU is the nonlinearity
    # whether the outputs of sublayers are normalized too, and query_pre_attn_scalar scales the scores
    sandwiched: bool = False
    window: int | None = None  # the default of sliding_window; None: the family has no windows
    # every period-th layer attends to all tokens, the others within the window, unless layer_types differs; 1: all
    # layers of Mistral have the window, and those of Qwen from max_window_layers on
    period: int = 1
    H_kv: int | None = None  # the default of num_key_value_heads; None: the number of query heads
    d_head: int | None = None  # the default of head_dim; None: d_e/H
    unplaced: int = 0  # every unplaced-th layer has no positions, unless no_rope_layers differs; 0: all have positions
    after: bool = False  # whether only the outputs of sublayers are normalized
    together: bool = False  # whether queries and keys are normalized over all heads together
    sinks: bool = False  # whether attention has sinks; attention_bias is then true unless it is said


FAMILIES: dict[str, Family] = {
    "llama": Family("Llama"),
    "mistral": Family("Mistral", window=4096, H_kv=8),
    "qwen2": Family("Qwen2", biases="qkv", window=4096, H_kv=32),
    "qwen3": Family("Qwen3", normalizes_heads=True, window=4096, H_kv=32, d_head=128),
    "olmo2": Family("Olmo2", normalizes_heads=True, after=True, together=True),
    "smollm3": Family("SmolLM3", H_kv=4, unplaced=4),
    "gemma": Family("Gemma", gemma=True, H_kv=16, d_head=256),
    "gemma2": Family("Gemma2", gemma=True, sandwiched=True, window=4096, period=2, H_kv=4, d_head=256),
    "gemma3_text": Family(
        "Gemma3", normalizes_heads=True, gemma=True, sandwiched=True, window=4096, period=6, H_kv=4, d_head=256
    ),
    "mixtral": Family("Mixtral", H_kv=8),
    "qwen3_moe": Family("Qwen3Moe", normalizes_heads=True, H_kv=4),
    "olmoe": Family("Olmoe", normalizes_heads=True, together=True),
    "gpt_oss": Family("GptOss", sinks=True, window=128, period=2, H_kv=8, d_head=64),
}
"""By model_type."""


def _read(fields: Fields, found: dict[str, Any], names: Sequence[Any], kind: str) -> None:
    family, L = FAMILIES[kind], found["L"]
    if len(names) < L:
        raise InterchangeError(f"{fields.path}: num_hidden_layers: expected at most the {len(names)} tensors, got {L}")
    norm = RMSNorm(epsilon=found["norm.epsilon"], offset=float(family.gemma))
    activation = ("hidden_activation", "hidden_act") if family.gemma else ("hidden_act",)
    named = next((name for name in activation if fields.get(name) is not None), "hidden_act")
    function = fields.activation(named, "gelu_pytorch_tanh" if family.gemma else "silu")
    if kind == "gemma" and fields.get(named) == "gelu":  # what the first official files call the tanh approximation
        function = fields.activation("", "gelu_pytorch_tanh")
    mlp = MLP(
        activation=function,
        gated=True,
        biases=fields.flag("mlp_bias", False),
        normalize_output=norm if family.sandwiched or family.after else None,
    )
    if kind in MIXTURES:
        mlp = read_mixture(fields, MIXTURES[kind], mlp)
        found["d_mlp"] = fields.integer(MIXTURES[kind].width)
    found["attention"] = _attention(fields, kind, norm, L=L, l_max=found["l_max"])
    found |= {"d_mid": found["d_attn"], "norm": norm, "mlp": mlp}
    found["unembedding.cap"] = _cap(fields, "final_logit_softcapping", kind, 30.0)


def _cap(fields: Fields, name: str, kind: str, default: float) -> float | None:
    """Return the cap of scores or logits: None if the field is null; Gemma 2's default if it is missing."""
    if not FAMILIES[kind].sandwiched or (fields.get(name) is None and (kind != "gemma2" or fields.has(name))):
        return None
    return fields.number(name, default)


def _attention(fields: Fields, kind: str, norm: RMSNorm, *, L: int, l_max: int) -> Any:
    family = FAMILIES[kind]
    scale = fields.integer("query_pre_attn_scalar", 256) ** -0.5 if family.sandwiched else None
    line = Attention(
        biases=family.biases or fields.flag("attention_bias", family.sinks),
        scale=scale,
        cap=_cap(fields, "attn_logit_softcapping", kind, 50.0),
        normalize_heads=norm if family.normalizes_heads else None,
        heads_together=family.together,
        sinks=family.sinks,
        clip=fields.number("clip_qkv", 0.0) if kind == "olmoe" and fields.get("clip_qkv") is not None else None,
        normalize_output=norm if family.sandwiched or family.after else None,
    )
    width = fields.get("sliding_window", None if fields.has("sliding_window") else family.window)
    if family.period == 1 and kind != "mistral" and not fields.flag("use_sliding_window", False):
        width = None
    base = BASES.get(kind, 10_000.0)
    lines = {FULL: line.but(positions=_rotary(rotary_of(fields), l_max, base))}
    in_window = [False] * L
    if width is not None and family.window:
        in_window = _windows(fields, kind, L)
        window = fields.integer("sliding_window", family.window)
        of_windows = 10_000.0 if kind == "gemma3_text" else base
        lines[SLIDING] = line.but(positions=_rotary(rotary_of(fields, SLIDING), l_max, of_windows), window=window)
    elif not family.window:
        if kind != "olmoe":
            fields.require("clip_qkv", None, "clipped queries, keys and values")
        if kind in MIXTURES and (kind != "qwen3_moe" or fields.flag("use_sliding_window", False)):
            fields.require("sliding_window", None, "windows in all layers")
    of_layers = [lines[SLIDING if w else FULL] for w in in_window]
    if family.unplaced:
        fields.require("use_sliding_window", False, "windows in some layers")
        placed = _placed(fields, kind, L)
        of_layers = [line if has else line.but(positions=None) for line, has in zip(of_layers, placed, strict=True)]
    return in_turn(of_layers)


def _placed(fields: Fields, kind: str, L: int) -> list[bool]:
    """Return whether each layer has positions."""
    flags = fields.get("no_rope_layers")  # 1: has positions
    if flags is None:
        period = fields.integer("no_rope_layer_interval", FAMILIES[kind].unplaced)
        return [(l + 1) % period > 0 for l in range(L)]
    if not isinstance(flags, list) or len(flags) != L or not all(flag in (0, 1) for flag in flags):
        raise InterchangeError(
            f"{fields.path}: no_rope_layers: expected 0 or 1 for each of {L} layers, got {str(flags)[:60]}"
        )
    return [bool(flag) for flag in flags]


def _windows(fields: Fields, kind: str, L: int) -> list[bool]:
    """Return whether each layer has a window."""
    types = fields.get("layer_types")
    if types is None:
        period = fields.integer("sliding_window_pattern", FAMILIES[kind].period)
        first = fields.integer("max_window_layers", 28, least=0) if kind.startswith("qwen") else 0
        return [l >= first and (period == 1 or (l + 1) % period > 0) for l in range(L)]
    if not isinstance(types, list) or len(types) != L or not set(types) <= {SLIDING, FULL}:
        fields.needs.append(f"other kinds of layers (layer_types = {str(types)[:60]})")
        return [False] * L
    return [one == SLIDING for one in types]


def in_turn(lines: list[Attention]) -> Attention | tuple[Attention, ...]:
    """Return the shortest sequence of lines that, repeated, gives those of all layers."""
    n = next(n for n in range(1, len(lines) + 1) if all(line == lines[l % n] for l, line in enumerate(lines)))
    return tuple(lines[:n])


def rotary_of(fields: Fields, kind: str = FULL) -> Fields:
    """Return the fields of the rotary positions of the layers of a kind."""
    state = fields.table("rope_parameters")
    if not state:  # before transformers 5
        is_local = kind == SLIDING and fields.get("rope_local_base_freq") is not None
        name = "rope_local_base_freq" if is_local else "rope_theta"
        state = {**({} if is_local else fields.table("rope_scaling")), "rope_theta": fields.get(name)}
    elif kind in state or FULL in state:
        state = fields.inner(state).table(kind)
    return fields.inner(state)


def _rotary(fields: Fields, l_max: int, base: float) -> Rotary:
    """Return rotary positions; `base` is the default of theirs."""
    fields.require("partial_rotary_factor", 1.0, "rotary positions for only part of the rows")
    return Rotary(base=fields.number("rope_theta", base), scaling=read_scaling(fields, l_max))


def read_scaling(fields: Fields, l_max: int, *, scales_scores: bool = False) -> Linear | Llama3 | Yarn | None:
    """Return the scaling of rotary frequencies; ``scales_scores``: whether mscale_all_dim also scales the scores."""
    kind = fields.get("rope_type", fields.get("type", "default"))
    if str(kind) not in SCALINGS:
        fields.needs.append(f"another scaling of positions (rope_type = {kind!r})")
        return None
    line, table = SCALINGS[kind]
    found: dict[str, Any] = {"l_max": l_max}
    for row in table:
        row.read(fields, found)
    del found["l_max"]
    if line is Yarn and fields.get("attention_factor"):
        found["attention_factor"] = fields.number("attention_factor", 1.0)
    scaling = line(**found)
    if not isinstance(scaling, Yarn):
        return scaling
    if not scales_scores:
        fields.require("mscale", None, "another scaling of the scores")
        fields.require("mscale_all_dim", None, "another scaling of the scores")
        return scaling
    mscale, of_scores = fields.number("mscale", 0.0), fields.number("mscale_all_dim", 0.0)
    if mscale and of_scores and scaling.attention_factor is None:
        scaling = dataclasses.replace(
            scaling, attention_factor=scaling.magnitude(mscale) / scaling.magnitude(of_scores)
        )
    return dataclasses.replace(scaling, scores=of_scores)


def rotary_fields(positions: Any) -> dict[str, Any]:
    """Return the fields of rotary positions; for others the defaults, which differ when they are read back."""
    if not isinstance(positions, Rotary):
        return {"rope_type": "default", "rope_theta": 10_000.0}
    scaling = positions.scaling
    kind = next((kind for kind, (line, _) in SCALINGS.items() if isinstance(scaling, line)), "default")
    found = {"rope_type": kind, "rope_theta": positions.base}
    found |= {row.names: row.write(scaling) for row in SCALINGS[kind][1]}
    factor = getattr(scaling, "attention_factor", None)
    return found if factor is None else found | {"attention_factor": factor}


def _write(model: Model, state: dict[str, Any], kind: str) -> list[str]:
    c, v, family = model.config, model.config.variant, FAMILIES[kind]
    lines = [v.attentions[l % len(v.attentions)] for l in range(c.L)]
    in_window = [line.window is not None for line in lines]
    full, window = (next((line for line in lines if (line.window is not None) == w), None) for w in (False, True))
    first = next((line for line in lines if line.positions is not None), lines[0])
    state["rope_parameters"] = rotary_fields(first.positions)
    state |= _mlp_fields(c, kind)
    if not family.biases:
        state["attention_bias"] = first.biases is True
    if family.unplaced:
        state["no_rope_layers"] = [int(line.positions is not None) for line in lines]
    if kind == "olmoe":
        state["clip_qkv"] = first.clip
    if family.window:
        state["sliding_window"] = window.window if window else None
        if family.period > 1 or kind.startswith("qwen"):
            state["layer_types"] = [SLIDING if w else FULL for w in in_window]
        if kind.startswith("qwen"):
            state["use_sliding_window"] = window is not None
    if family.sandwiched:
        state["query_pre_attn_scalar"] = round(first.scale**-2) if first.scale else c.d_attn
        state["attn_logit_softcapping"], state["final_logit_softcapping"] = first.cap, v.unembedding.cap
    if kind == "gemma3_text":
        kinds = {SLIDING: window or first, FULL: full or first}
        state["rope_parameters"] = {name: rotary_fields(line.positions) for name, line in kinds.items()}
    return []


def _mlp_fields(c: Any, kind: str) -> dict[str, Any]:
    mlp, found = c.variant.mlp, {}
    if mlp is not None:
        name = theirs(mlp.activation or "gelu")
        name = "gelu_pytorch_tanh" if name == "gelu_new" else name  # gelu_new rounds differently in bfloat16
        found["hidden_activation" if FAMILIES[kind].sandwiched else "hidden_act"] = name
        if kind in ("llama", "smollm3"):
            found["mlp_bias"] = mlp.biases
    return found | (mixture_fields(MIXTURES[kind], mlp, c.d_mlp) if kind in MIXTURES else {})


def _architecture(kind: str, family: Family) -> Architecture:
    fields = [
        *written(model_type=kind, architectures=[f"{family.name}ForCausalLM"]),
        Need("use_bidirectional_attention", False, "bidirectional attention"),
        *fields_of(SIZES, OF_SIZES),
        Field("num_key_value_heads", "H_kv", family.H_kv or (lambda found: found["H"])),
        Field("head_dim", "d_attn", family.d_head or (lambda found: max(found["d_e"] // found["H"], 1))),
        Field("rms_norm_eps", "norm.epsilon", 1e-6),
        Field("tie_word_embeddings", "unembedding.tied", family.gemma or family.unplaced > 0),
        *written(rope_parameters=None, attention_dropout=0.0, pad_token_id=None),
    ]
    before = "pre_feedforward_layernorm" if family.sandwiched else "post_attention_layernorm"
    after = family.sandwiched or family.after
    attention, layer = "layers.attention", "model.layers.#"
    mlp = rows(f"{layer}.mlp", "gate_proj up_proj down_proj", "layers.mlp", OURS)
    tensors = {
        "model.embed_tokens.weight": "W_e",
        **({} if family.after else rows(layer, f"input_layernorm {before}", "layers", "norm1.* norm2.*")),
        **(rows(layer, OUTPUT_NORMS, "layers", "attention.norm_out.* mlp.norm_out.*") if after else {}),
        **rows(f"{layer}.self_attn", "q_proj k_proj v_proj o_proj", attention, HEADS),
        **{f"{layer}.self_attn.{a}_norm.weight": f"{attention}.gamma_{a}" for a in "qk"},
        f"{layer}.self_attn.sinks": f"{attention}.s",
        **(mixture_table(MIXTURES[kind]) if kind in MIXTURES else mlp),
        **OUTER,
    }
    return Architecture(
        "d",
        kind,
        PAPER.but(embedding=Embedding(positions=None, scaled=family.gemma), order="no_norm" if family.after else None),
        fields,
        tensors,
        _read,
        _write,
        prefix="model.",
        ignored=("*.rotary_emb.inv_freq",),  # in files of 2023
    )


KINDS = {kind: _architecture(kind, family) for kind, family in FAMILIES.items()}
