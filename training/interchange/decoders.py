"""Llama, Mistral, Qwen, OLMo 2, SmolLM3, Gemma and gpt-oss, as Algorithm 10 with changed lines; some have experts.

They differ in a few fields of config.json and in where their norms are, so one mapping reads and writes them all: the
directories of transformers (with the rotary fields of its versions 4 and 5) and GGUF files.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from algorithms import DTransformerConfig
from algorithms.lines import MLP, Attention, Embedding, Linear, Llama3, RMSNorm, Rotary, Unembedding, Yarn
from algorithms.model.variants import PAPER
from training.interchange.description import Architecture, Fields, Model, lost, size_fields, theirs, unlike
from training.interchange.errors import InterchangeError
from training.interchange.mapping import Entry, table
from training.interchange.mixtures import MIXTURES, mixture_entries, mixture_fields, read_mixture

SLIDING, FULL = "sliding_attention", "full_attention"
BASES = {"gemma3_text": 1_000_000.0, "smollm3": 2_000_000.0, "mixtral": 1_000_000.0, "gpt_oss": 150_000.0}
"""Of the wavelengths of rotary positions, in files that do not say."""
SIZES = {
    "N_V": ("vocab_size",),
    "l_max": ("max_position_embeddings",),
    "L": ("num_hidden_layers",),
    "H": ("num_attention_heads",),
    "d_e": ("hidden_size",),
    "d_mlp": ("intermediate_size",),
}
"""Our name → the field's name, which has no default."""


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


def _read_config(fields: Fields, names: Sequence[Any], kind: str) -> Model:
    family = FAMILIES[kind]
    fields.require("use_bidirectional_attention", False, "bidirectional attention")
    sizes: dict[str, Any] = fields.sizes(SIZES)
    L, H = sizes["L"], sizes["H"]
    d_head = fields.integer("head_dim", family.d_head or max(sizes["d_e"] // H, 1))
    if len(names) < L:
        raise InterchangeError(f"{fields.path}: num_hidden_layers: expected at most the {len(names)} tensors, got {L}")
    norm = RMSNorm(epsilon=fields.number("rms_norm_eps", 1e-6), offset=float(family.gemma))
    activation = ("hidden_activation", "hidden_act") if family.gemma else ("hidden_act",)
    named = next((name for name in activation if fields.get(name) is not None), "hidden_act")
    mlp = MLP(
        activation=fields.activation(named, "gelu_pytorch_tanh" if family.gemma else "silu"),
        gated=True,
        biases=fields.flag("mlp_bias", False),
        normalize_output=norm if family.sandwiched or family.after else None,
    )
    if kind in MIXTURES:
        mlp = read_mixture(fields, MIXTURES[kind], mlp)
        sizes["d_mlp"] = fields.integer(MIXTURES[kind].width)
    variant = PAPER.but(
        embedding=Embedding(positions=None, scaled=family.gemma),
        norm=norm,
        attention=_attention(fields, kind, norm, L=L, l_max=sizes["l_max"]),
        mlp=mlp,
        order="no_norm" if family.after else None,
        unembedding=Unembedding(
            tied=fields.flag("tie_word_embeddings", family.gemma or family.unplaced > 0),
            cap=_cap(fields, "final_logit_softcapping", kind, 30.0),
        ),
    )
    H_kv = fields.integer("num_key_value_heads", family.H_kv or H)
    return Model("d", DTransformerConfig(**sizes, d_attn=d_head, d_mid=d_head, H_kv=H_kv, variant=variant))


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
    lines = {FULL: line.but(positions=_rotary(fields, FULL, l_max, base))}
    in_window = [False] * L
    if width is not None and family.window:
        in_window = _windows(fields, kind, L)
        window = fields.integer("sliding_window", family.window)
        of_windows = 10_000.0 if kind == "gemma3_text" else base
        lines[SLIDING] = line.but(positions=_rotary(fields, SLIDING, l_max, of_windows), window=window)
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


def _rotary(fields: Fields, kind: str, l_max: int, base: float) -> Rotary:
    """Return the rotary positions of the layers of a kind; `base` is the default of theirs."""
    state = fields.table("rope_parameters")
    if not state:  # before transformers 5
        is_local = kind == SLIDING and fields.get("rope_local_base_freq") is not None
        name = "rope_local_base_freq" if is_local else "rope_theta"
        state = {**({} if is_local else fields.table("rope_scaling")), "rope_theta": fields.get(name)}
    elif kind in state or FULL in state:
        state = Fields(fields.path, state).table(kind)
    said = Fields(fields.path, state)
    said.require("partial_rotary_factor", 1.0, "rotary positions for only part of the rows")
    positions = Rotary(base=said.number("rope_theta", base), scaling=read_scaling(said, l_max))
    fields.needs += said.needs
    return positions


def read_scaling(fields: Fields, l_max: int, *, scales_scores: bool = False) -> Linear | Llama3 | Yarn | None:
    """Return the scaling of rotary frequencies; ``scales_scores``: whether mscale_all_dim also scales the scores."""
    kind = fields.get("rope_type", fields.get("type", "default"))
    if kind == "default":
        return None
    if kind not in ("linear", "llama3", "yarn"):
        fields.needs.append(f"another scaling of positions (rope_type = {kind!r})")
        return None
    factor = fields.number("factor", 1.0)
    if kind == "linear":
        return Linear(factor=factor)
    original = fields.integer("original_max_position_embeddings", l_max)
    if kind == "llama3":
        low, high = fields.number("low_freq_factor", 1.0), fields.number("high_freq_factor", 4.0)
        return Llama3(factor=factor, low=low, high=high, l_original=original)
    if not scales_scores:
        fields.require("mscale", None, "another scaling of the scores")
        fields.require("mscale_all_dim", None, "another scaling of the scores")
    scaling = Yarn(
        factor=factor,
        l_original=original,
        slow=fields.number("beta_slow", 1.0),
        fast=fields.number("beta_fast", 32.0),
        attention_factor=fields.number("attention_factor", 1.0) if fields.get("attention_factor") else None,
        truncate=fields.flag("truncate", True),
    )
    if not scales_scores:
        return scaling
    mscale, of_scores = fields.number("mscale", 0.0), fields.number("mscale_all_dim", 0.0)
    if mscale and of_scores and scaling.attention_factor is None:
        scaling = dataclasses.replace(
            scaling, attention_factor=scaling.magnitude(mscale) / scaling.magnitude(of_scores)
        )
    return dataclasses.replace(scaling, scores=of_scores)


def _write_config(model: Model, kind: str) -> tuple[dict[str, Any], list[str]]:
    c, v, family = model.config, model.config.variant, FAMILIES[kind]
    lines = [v.attentions[l % len(v.attentions)] for l in range(c.L)]
    in_window = [line.window is not None for line in lines]
    full, window = (next((line for line in lines if (line.window is not None) == w), None) for w in (False, True))
    first = next((line for line in lines if line.positions is not None), lines[0])
    state: dict[str, Any] = {
        "model_type": kind,
        "architectures": [f"{family.name}ForCausalLM"],
        **size_fields(c, SIZES),
        "num_key_value_heads": c.H_kv,
        "head_dim": c.d_attn,
        "rms_norm_eps": v.norm.epsilon,
        "tie_word_embeddings": c.tied,
        "rope_parameters": rotary_fields(first.positions),
        "attention_dropout": 0.0,
        "pad_token_id": None,
    }
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
    lacks = lost(c, v, state, lambda fields: _read_config(fields, range(c.L), kind))
    return state, lacks + unlike(c.d_mid, c.d_attn, f"values of a different size than keys (d_mid = {c.d_mid})")


def _mlp_fields(c: Any, kind: str) -> dict[str, Any]:
    mlp, found = c.variant.mlp, {}
    if mlp is not None:
        name = theirs(mlp.activation or "gelu")
        name = "gelu_pytorch_tanh" if name == "gelu_new" else name  # gelu_new rounds differently in bfloat16
        found["hidden_activation" if FAMILIES[kind].sandwiched else "hidden_act"] = name
        if kind in ("llama", "smollm3"):
            found["mlp_bias"] = mlp.biases
    return found | (mixture_fields(MIXTURES[kind], mlp, c.d_mlp) if kind in MIXTURES else {})


def rotary_fields(positions: Any) -> dict[str, Any]:
    """Return the fields of rotary positions; for others the defaults, which differ when they are read back."""
    if not isinstance(positions, Rotary):
        return {"rope_type": "default", "rope_theta": 10_000.0}
    scaling, found = positions.scaling, {"rope_type": "default", "rope_theta": positions.base}
    if isinstance(scaling, Linear):
        return found | {"rope_type": "linear", "factor": scaling.factor}
    if isinstance(scaling, Llama3):
        return found | {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low,
            "high_freq_factor": scaling.high,
            "original_max_position_embeddings": scaling.l_original,
        }
    if isinstance(scaling, Yarn):
        found |= {"rope_type": "yarn", "factor": scaling.factor, "beta_slow": scaling.slow, "beta_fast": scaling.fast}
        found |= {"original_max_position_embeddings": scaling.l_original, "truncate": scaling.truncate}
        return found | ({} if scaling.attention_factor is None else {"attention_factor": scaling.attention_factor})
    return found


def _entries(model: Model, state: dict[str, Any], kind: str) -> list[Entry]:
    family, config = FAMILIES[kind], model.config
    line, mlp = config.variant.attentions[0], config.variant.mlp
    after = "pre_feedforward_layernorm" if family.sandwiched else "post_attention_layernorm"
    norms = {} if family.after else {"input_layernorm": "norm1", after: "norm2"}
    if family.sandwiched or family.after:
        norms |= {"post_attention_layernorm": "attention.norm_out", "post_feedforward_layernorm": "mlp.norm_out"}
    weights = {f"{name}.weight": f"{leaf}.gamma" for name, leaf in norms.items()}
    for a in "qkv":
        weights |= {f"self_attn.{a}_proj.weight": f"attention.heads.W_{a}"}
        weights |= {f"self_attn.{a}_proj.bias": f"attention.heads.b_{a}"} if line.biases in (True, "qkv") else {}
    weights |= {"self_attn.o_proj.weight": "attention.W_o"}
    weights |= {"self_attn.o_proj.bias": "attention.b_o"} if line.biases in (True, "out") else {}
    weights |= {f"self_attn.{a}_norm.weight": f"attention.gamma_{a}" for a in "qk" if family.normalizes_heads}
    weights |= {"self_attn.sinks": "attention.s"} if family.sinks else {}
    for name, ours in (("gate", "gate"), ("up", "mlp1"), ("down", "mlp2")) if kind not in MIXTURES else ():
        weights |= {f"mlp.{name}_proj.weight": f"mlp.W_{ours}"}
        weights |= {f"mlp.{name}_proj.bias": f"mlp.b_{ours}"} if mlp.biases else {}
    found = [table("model.embed_tokens.weight", "W_e", ["lm_head.weight"] if config.tied else [])]
    for l in range(config.L):
        found += [Entry(f"model.layers.{l}.{name}", (f"layers.{leaf}",), l) for name, leaf in weights.items()]
        found += mixture_entries(MIXTURES[kind], mlp, l, l) if kind in MIXTURES else []
    found.append(Entry("model.norm.weight", ("norm.gamma",)))
    return found + ([] if config.tied else [Entry("lm_head.weight", ("W_u",))])


def architecture(kind: str) -> Architecture:
    """Return how models of one of `FAMILIES` are described and stored."""
    return Architecture(
        functools.partial(_read_config, kind=kind),
        functools.partial(_write_config, kind=kind),
        functools.partial(_entries, kind=kind),
        prefix="model.",
        ignored=("*.rotary_emb.inv_freq",),  # in files of 2023
    )
