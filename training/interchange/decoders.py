"""Llama, Mistral, Qwen, OLMo, SmolLM3, Granite, Gemma, GLM-4, nanochat, Cohere, MiniMax-M2, gpt-oss: by changed lines.

Some have experts. They differ in a few fields of config.json and in where their norms are, so one mapping reads and
writes them all: the directories of transformers (with the rotary fields of its versions 4 and 5) and GGUF files.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from algorithms.lines import MLP, Attention, Embedding, Experts, LayerNorm, Linear, Llama3, RMSNorm, Rotary, Yarn
from algorithms.model.variant import Order, Variant
from algorithms.model.variants import PAPER
from training.interchange.description import (
    Architecture,
    Field,
    Fields,
    Model,
    Need,
    fields_of,
    in_turn,
    theirs,
    value_at,
    written,
)
from training.interchange.errors import InterchangeError
from training.interchange.experts import (
    MIXTURES,
    OURS,
    SHARED,
    mixture_fields,
    mixture_table,
    of_shared_mlp,
    read_mixture,
    shared_experts,
)
from training.interchange.mapping import HEADS, Table, rows

SLIDING, FULL = "sliding_attention", "full_attention"
BASES = {"gemma3_text": 1_000_000.0, "smollm3": 2_000_000.0, "mixtral": 1_000_000.0, "gpt_oss": 150_000.0}
BASES |= {"olmo3": 500_000.0, "minimax_m2": 5_000_000.0}
"""Of the wavelengths of rotary positions, in files that do not say."""
SIZES = "N_V l_max L H d_e d_mlp"
OF_SIZES = "vocab_size max_position_embeddings num_hidden_layers num_attention_heads hidden_size intermediate_size"
"""Our names of sizes, and the fields', which have no defaults."""
WITHOUT_MLP = fields_of(SIZES.removesuffix(" d_mlp"), OF_SIZES.removesuffix(" intermediate_size"))
OUTER = {"model.norm.*": "norm.*", "lm_head.weight": "W_u"}
"""The tensors after the layers."""
NORMS = "input_layernorm post_attention_layernorm", "layers", "norm1.* norm2.*"
"""The norms of a layer, for `rows`."""
GRANITES = "granite", "granitemoe", "granitemoeshared"
FACTORS = [
    Field("embedding_multiplier", "embedding.factor", 1.0),
    Field("residual_multiplier", "residual_factor", 1.0),
    Field("logits_scaling", "unembedding.factor", 1.0, inverse=True),
]
"""The factors of Granite."""


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


class Norms(NamedTuple):
    """The names of the norms in a layer; "-": none."""

    attention: str = "input_layernorm"
    mlp: str = "post_attention_layernorm"
    of_attention: str = "-"  # of its output
    of_mlp: str = "-"

    @property
    def of_outputs(self) -> bool:
        """Whether the outputs of attention and MLP are normalized."""
        return self.of_attention != "-"


_AFTER = Norms("-", "-", "post_attention_layernorm", "post_feedforward_layernorm")
_SANDWICH = _AFTER._replace(attention="input_layernorm", mlp="pre_feedforward_layernorm")
_NORM, _GEMMA_NORM = RMSNorm(epsilon=1e-5), RMSNorm(epsilon=1e-6, offset=1.0)
_SCORES, _LOGITS = "attn_logit_softcapping", "final_logit_softcapping"
_GLM4 = Norms(of_attention="post_self_attn_layernorm", of_mlp="post_mlp_layernorm")


class Family(NamedTuple):
    """Properties of all models of a `model_type`, including those that their config.json may omit."""

    name: str  # of the class, without ForCausalLM
    biases: Literal["qkv"] | None = None  # of queries, keys and values; None: attention_bias decides
    decides: bool | Literal["qkv"] = True  # which biases there are if attention_bias is true
    biased: bool = False  # the default of attention_bias
    normalizes_heads: bool = False  # whether queries and keys are normalized
    gemma: bool = False  # whether embeddings are scaled, and GELU is the nonlinearity
    norms: Norms = Norms()
    norm: LayerNorm = RMSNorm(epsilon=1e-6)  # with the default ε
    order: Order | None = None
    scalar: bool = False  # whether query_pre_attn_scalar scales the scores
    caps: Mapping[str, float | None] = {}  # the fields with caps of scores and logits, and their defaults
    fields: Sequence[Field] = ()  # further fields
    window: int | None = None  # the default of sliding_window; None: the family has no windows
    # every period-th layer attends to all tokens, the others within the window, unless layer_types differs; 1: all
    # layers of Mistral have the window, and those of Qwen from max_window_layers on
    period: int = 1
    H_kv: int | None = None  # the default of num_key_value_heads; None: the number of query heads
    d_head: int | None = None  # the default of head_dim; None: d_e/H
    placed_in_windows: bool = False  # whether only layers with windows have positions
    tied: bool = False  # the default of tie_word_embeddings
    unplaced: int = 0  # every unplaced-th layer has no positions, unless no_rope_layers differs; 0: all have positions
    together: bool = False  # whether queries and keys are normalized over all heads together
    sinks: bool = False  # whether attention has sinks
    share: float | None = None  # the default of partial_rotary_factor; None: all rows are rotated
    pairs: Literal["halves", "neighbors", "halves_swapped"] = "halves"  # of rows that are rotated
    # the field with the rotary base of layers with windows, in files from before transformers 5, if these have
    # positions of their own, which are never scaled
    local: str | None = None
    gated: bool = True  # whether MLPs are
    mlp: tuple[str, str] = ("gate_proj up_proj down_proj", OURS)  # the matrices of an MLP: their names, and ours


_OLMO2 = Family("Olmo2", normalizes_heads=True, norms=_AFTER, order="no_norm", norm=_NORM, together=True)
_GEMMA2 = Family(
    "Gemma2",
    gemma=True,
    norm=_GEMMA_NORM,
    norms=_SANDWICH,
    scalar=True,
    caps={_SCORES: 50.0, _LOGITS: 30.0},
    window=4096,
    period=2,
    H_kv=4,
    d_head=256,
)
_GEMMA3 = _GEMMA2._replace(
    name="Gemma3", normalizes_heads=True, caps={_SCORES: None, _LOGITS: None}, period=6, local="rope_local_base_freq"
)
FAMILIES: dict[str, Family] = {
    "llama": Family("Llama"),
    "mistral": Family("Mistral", window=4096, H_kv=8),
    "qwen2": Family("Qwen2", biases="qkv", window=4096, H_kv=32),
    "qwen3": Family("Qwen3", normalizes_heads=True, window=4096, H_kv=32, d_head=128),
    "olmo2": _OLMO2,
    "olmo3": _OLMO2._replace(name="Olmo3", window=4096, period=4, local="rope_theta"),
    "smollm3": Family("SmolLM3", H_kv=4, tied=True, unplaced=4),
    "granite": Family("Granite", fields=FACTORS),
    "granitemoe": Family("GraniteMoe", fields=FACTORS),
    "granitemoeshared": Family("GraniteMoeShared", fields=FACTORS),
    "gemma": Family("Gemma", gemma=True, norm=_GEMMA_NORM, H_kv=16, d_head=256),
    "gemma2": _GEMMA2,
    "gemma3_text": _GEMMA3,
    "glm4": Family(
        "Glm4",
        decides="qkv",
        biased=True,
        norms=_GLM4,
        norm=RMSNorm(epsilon=1.5625e-7),
        H_kv=2,
        d_head=128,
        share=0.5,
        pairs="neighbors",
        mlp=("gate_up_proj down_proj", "*_gate+*_mlp1 *_mlp2"),
    ),
    "nanochat": Family(
        "NanoChat",
        normalizes_heads=True,
        norms=Norms("-", "-"),
        norm=RMSNorm(epsilon=1e-6, gamma=False),
        caps={_LOGITS: 15.0},
        pairs="halves_swapped",
        gated=False,
        mlp=("fc1 fc2", "*_mlp1 *_mlp2"),
    ),
    "cohere2": Family(
        "Cohere2",
        norms=Norms(mlp="-"),
        norm=LayerNorm(epsilon=1e-5, beta=False),
        order="one_norm",
        fields=[Field("logit_scale", "unembedding.factor", 0.0625)],
        window=4096,
        period=4,
        placed_in_windows=True,
        tied=True,
        pairs="neighbors",
    ),
    "mixtral": Family("Mixtral", norm=_NORM, H_kv=8),
    "qwen3_moe": Family("Qwen3Moe", normalizes_heads=True, H_kv=4),
    "olmoe": Family("Olmoe", normalizes_heads=True, norm=_NORM, together=True),
    "minimax_m2": Family("MiniMaxM2", normalizes_heads=True, together=True, H_kv=8, d_head=128, share=1.0),
    "gpt_oss": Family("GptOss", biased=True, norm=_NORM, sinks=True, window=128, period=2, H_kv=8, d_head=64),
}
"""By model_type."""


def _read(fields: Fields, found: dict[str, Any], names: Sequence[Any], kind: str) -> None:
    family, L = FAMILIES[kind], found["L"]
    if len(names) < L:
        raise InterchangeError(f"{fields.path}: num_hidden_layers: expected at most the {len(names)} tensors, got {L}")
    norm = dataclasses.replace(family.norm, epsilon=found["norm.epsilon"])
    activation = ("hidden_activation", "hidden_act") if family.gemma else ("hidden_act",)
    named = next((name for name in activation if fields.get(name) is not None), "hidden_act")
    function = fields.activation(named, "gelu_pytorch_tanh" if family.gemma else "silu")
    if kind == "gemma" and fields.get(named) == "gelu":  # what the first official files call the tanh approximation
        function = fields.activation("", "gelu_pytorch_tanh")
    mlp = MLP(
        activation=function,
        gated=family.gated,
        biases=fields.flag("mlp_bias", False),
        normalize_output=norm if family.norms.of_outputs else None,
    )
    if kind in MIXTURES:
        found["d_mlp"] = fields.integer(MIXTURES[kind].width)
        shared = shared_experts(fields, SHARED, found["d_mlp"]) if kind == "granitemoeshared" else 0
        mlp = read_mixture(fields, MIXTURES[kind], mlp, shared=shared)
    found["attention"] = _attention(fields, kind, norm, L=L, l_max=found["l_max"])
    found |= {"d_mid": found["d_attn"], "norm": norm, "mlp": mlp}
    found["unembedding.cap"] = _cap(fields, _LOGITS, family)


def _cap(fields: Fields, name: str, family: Family) -> float | None:
    """Return the cap of scores or logits: None if the field is null, the family's default if it is missing."""
    default = None if fields.has(name) else family.caps.get(name)
    if name not in family.caps or fields.get(name, default) is None:
        return None
    return fields.number(name, default or 0.0)


def _attention(fields: Fields, kind: str, norm: Any, *, L: int, l_max: int) -> Any:
    family = FAMILIES[kind]
    scale = fields.integer("query_pre_attn_scalar", 256) ** -0.5 if family.scalar else None
    scale = fields.number("attention_multiplier", 1.0) if kind in GRANITES else scale
    line = Attention(
        biases=family.biases or (fields.flag("attention_bias", family.biased) and family.decides),
        scale=scale,
        cap=_cap(fields, _SCORES, family),
        normalize_heads=norm if family.normalizes_heads else None,
        heads_together=family.together,
        sinks=family.sinks,
        clip=fields.number("clip_qkv", 0.0) if kind == "olmoe" and fields.get("clip_qkv") is not None else None,
        normalize_output=norm if family.norms.of_outputs else None,
    )
    width = fields.get("sliding_window", None if fields.has("sliding_window") else family.window)
    if family.period == 1 and kind != "mistral" and not fields.flag("use_sliding_window", False):
        width = None
    base = BASES.get(kind, 10_000.0)
    lines = {FULL: line if family.placed_in_windows else line.but(positions=_rotary(fields, FULL, kind, l_max, base))}
    in_window = [False] * L
    if width is not None and family.window:
        in_window = _windows(fields, kind, L)
        window = fields.integer("sliding_window", family.window)
        of_windows = 10_000.0 if kind == "gemma3_text" else base
        lines[SLIDING] = line.but(positions=_rotary(fields, SLIDING, kind, l_max, of_windows), window=window)
    elif not family.window:
        if kind != "olmoe":
            fields.require("clip_qkv", None, "clipped queries, keys and values")
        if kind in MIXTURES and (kind != "qwen3_moe" or fields.flag("use_sliding_window", False)):
            fields.require("sliding_window", None, "windows in all layers")
    of_layers = [lines[SLIDING if w else FULL] for w in in_window]
    if family.unplaced:
        fields.require("use_sliding_window", False, "windows in some layers")
        placed = placed_layers(fields, fields.get("no_rope_layers"), family.unplaced, L)
        of_layers = [line if has else line.but(positions=None) for line, has in zip(of_layers, placed, strict=True)]
    return in_turn(of_layers)


def placed_layers(fields: Fields, flags: Any, period: int, L: int) -> list[bool]:
    """Return whether each layer has positions, 1 in the flags; None: all but every period-th, unless a field says."""
    if flags is None:
        period = fields.integer("no_rope_layer_interval", period)
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


def rotary_of(
    fields: Fields,
    kind: str = FULL,
    local: str | None = None,
    names: Sequence[str] = ("rope_theta", "partial_rotary_factor"),
) -> Fields:
    """Return the fields of the rotary positions of the layers of a kind; `local`: as in `Family`; `names`: of what
    config.json has beside them. As in transformers, rope_scaling replaces rope_parameters, or changes those of a kind.
    """
    state, own = fields.table("rope_parameters"), kind == SLIDING and local is not None
    scaling = {} if own else fields.table("rope_scaling")
    by_kind = kind in state or FULL in state
    state = {**fields.inner(state).table(kind), **scaling} if by_kind else scaling or state
    names = (local, names[1]) if own and local else names
    beside = {"rope_theta": fields.get(names[0]), "partial_rotary_factor": fields.get(names[1])}
    return fields.inner({name: value for name, value in beside.items() if value is not None} | state)


def _rotary(fields: Fields, layers: str, kind: str, l_max: int, base: float) -> Rotary:
    """Return the rotary positions of some layers of a model; `base` is the default of theirs."""
    family = FAMILIES[kind]
    said, share = rotary_of(fields, layers, family.local), 1.0
    if family.share is None:
        said.require("partial_rotary_factor", 1.0, "rotary positions for only part of the rows")
    elif kind == "minimax_m2" and said.get("partial_rotary_factor") is None and fields.get("rotary_dim") is not None:
        share = fields.integer("rotary_dim") / fields.integer("head_dim", family.d_head)
    else:
        share = said.number("partial_rotary_factor", family.share)
    scaling = read_scaling(said, l_max)
    return Rotary(base=said.number("rope_theta", base), share=share, pairs=family.pairs, scaling=scaling)


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
    if scaling.attention_factor == scaling.magnitude():
        scaling = dataclasses.replace(scaling, attention_factor=None)
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
    if isinstance(first.positions, Rotary) and family.share is not None:
        state["rope_parameters"]["partial_rotary_factor"] = first.positions.share
    if not family.biases:
        state["attention_bias"] = first.biases == family.decides
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
    state |= _scale_fields(c, first, kind)
    state |= {name: {_SCORES: first.cap, _LOGITS: v.unembedding.cap}[name] for name in family.caps}
    if family.local:
        kinds = {SLIDING: window or first, FULL: full or first}
        state["rope_parameters"] = {name: rotary_fields(line.positions) for name, line in kinds.items()}
    return []


def _scale_fields(c: Any, line: Attention, kind: str) -> dict[str, Any]:
    if kind in GRANITES:
        return {"attention_multiplier": line.scale or c.d_attn**-0.5}
    return {"query_pre_attn_scalar": round((line.scale or c.d_attn**-0.5) ** -2)} if FAMILIES[kind].scalar else {}


def _mlp_fields(c: Any, kind: str) -> dict[str, Any]:
    mlp, found = c.variant.mlp, {}
    if mlp is not None:
        name = theirs(mlp.activation or "gelu")
        name = "gelu_pytorch_tanh" if name == "gelu_new" else name  # gelu_new rounds differently in bfloat16
        found["hidden_activation" if FAMILIES[kind].scalar else "hidden_act"] = name
        if kind in ("llama", "smollm3", "granite"):
            found["mlp_bias"] = mlp.biases
    if kind == "granitemoeshared":
        found[SHARED] = c.d_mlp * getattr(mlp, "shared", 0)
    return found | (mixture_fields(MIXTURES[kind], mlp, c.d_mlp) if kind in MIXTURES else {})


def heads_fields(H_kv: int | None = None, d_head: int | None = None) -> list[Field]:
    """Return the fields of the heads of keys and of a head's rows, with these defaults; None: H, and d_e/H."""
    return [
        Field("num_key_value_heads", "H_kv", H_kv or (lambda found: found["H"])),
        Field("head_dim", "d_attn d_mid", d_head or (lambda found: max(found["d_e"] // found["H"], 1))),
    ]


VARIANT = PAPER.but(
    embedding=Embedding(positions=None),
    norm=RMSNorm(epsilon=1e-6),
    mlp=MLP(activation="silu", gated=True, biases=False),
)
"""The lines that no field decides, of most decoders."""


class Positions(NamedTuple):
    """The fields of rotary positions, which are those of a line at a path; as a `Field`."""

    ours: str
    base: float = 10_000.0  # the default of rope_theta
    share: float | None = None  # the default of partial_rotary_factor; None: all rows are rotated
    pairs: Literal["halves", "neighbors"] = "halves"

    def read(self, fields: Fields, found: dict[str, Any]) -> None:
        """Add the positions to what was found."""
        said = rotary_of(fields)
        if self.share is None:
            said.require("partial_rotary_factor", 1.0, "rotary positions for only part of the rows")
        share = 1.0 if self.share is None else said.number("partial_rotary_factor", self.share)
        scaling = read_scaling(said, found["l_max"])
        base = said.number("rope_theta", self.base)
        found[self.ours] = Rotary(base=base, share=share, pairs=self.pairs, scaling=scaling)

    def fill(self, state: dict[str, Any], config: Any, lines: Mapping[str, Any]) -> None:
        """Add the fields to a config.json."""
        positions = value_at(config, self.ours, lines)
        share = {} if self.share is None else {"partial_rotary_factor": getattr(positions, "share", 1.0)}
        state["rope_parameters"] = rotary_fields(positions) | share


class Mixed(NamedTuple):
    """The fields of the experts of models of a kind; as a `Field`."""

    kind: str
    shared: str = ""  # the field with the hidden units of what every token takes, if it is not their number
    default: int = 512  # of that field
    activation: str = "silu"  # the default of hidden_act
    width: int | None = None  # the default of the field with the hidden units of an expert

    def read(self, fields: Fields, found: dict[str, Any]) -> None:
        """Add the mixture, and the hidden units of an expert, to what was found."""
        own = MIXTURES[self.kind]
        found["d_mlp"] = fields.integer(own.width, self.width)
        mlp = MLP(
            activation=fields.activation("hidden_act", self.activation),
            gated=True,
            biases=fields.flag("mlp_bias", False),
        )
        shared = {"shared": shared_experts(fields, self.shared, found["d_mlp"], self.default)} if self.shared else {}
        found["mlp"] = read_mixture(fields, own, mlp, **shared)

    def fill(self, state: dict[str, Any], config: Any, lines: Mapping[str, Any]) -> None:
        """Add the fields to a config.json."""
        mlps = config.variant.mlps_in_turn
        mlp = next((line for line in mlps if isinstance(line, Experts)), mlps[0])
        state |= mixture_fields(MIXTURES[self.kind], mlp, config.d_mlp)
        state["hidden_act"] = theirs(getattr(mlp, "activation", None) or "gelu")
        state |= {self.shared: config.d_mlp * getattr(mlp, "shared", 0)} if self.shared else {}


def of_lines(
    kind: str,
    name: str,
    tensors: Table | Callable[[Model, dict[str, Any], str], Table],
    *,
    fields: Sequence[Any] = (),
    variant: Variant = VARIANT,
    sizes: Sequence[Any] = fields_of(SIZES, OF_SIZES),
    heads: Sequence[Any] | None = None,
    epsilon: float = 1e-6,
    of_epsilon: str = "rms_norm_eps",
    norms: str = "",
    tied: bool = False,
    **others: Any,
) -> Architecture:
    """Return the architecture of decoders that differ in lines.

    Args:
        kind: the `model_type`.
        name: of the class, without ForCausalLM.
        tensors: those besides embeddings, the norms of layers, and what follows them.
        fields: those besides sizes, heads, ε and whether W_u is W_eᵀ.
        variant: the lines that no field decides.
        sizes: their fields.
        heads: the fields of their sizes; None: those of `heads_fields`.
        epsilon: the default of the norms' ε.
        of_epsilon: its field.
        norms: the paths of further norms with the same ε.
        tied: the default of tie_word_embeddings.
        others: as in `Architecture`.
    """
    of_all = [
        *written(model_type=kind, architectures=[f"{name}ForCausalLM"]),
        *sizes,
        *(heads_fields() if heads is None else heads),
        Field(of_epsilon, " ".join(f"{norm}.epsilon" for norm in ("norm", *norms.split())), epsilon),
        Field("tie_word_embeddings", "unembedding.tied", tied),
        *fields,
        *written(attention_dropout=0.0, pad_token_id=None),
    ]

    def whole(*model: Any) -> Table:
        inner = tensors(*model) if callable(tensors) else tensors
        norms = {} if "layers.norm1.*" in inner.values() else rows("model.layers.#", *NORMS)
        return {"model.embed_tokens.weight": "W_e", **norms, **inner, **OUTER}

    return Architecture("d", kind, variant, of_all, whole, prefix="model.", **others)


def _architecture(kind: str, family: Family) -> Architecture:
    is_rms = isinstance(family.norm, RMSNorm)
    fields = [
        *written(model_type=kind, architectures=[f"{family.name}ForCausalLM"]),
        Need("use_bidirectional_attention", False, "bidirectional attention"),
        *fields_of(SIZES, OF_SIZES),
        *heads_fields(family.H_kv, family.d_head),
        Field("rms_norm_eps" if is_rms else "layer_norm_eps", "norm.epsilon", family.norm.epsilon),
        Field("tie_word_embeddings", "unembedding.tied", family.gemma or family.tied),
        *family.fields,
        *written(rope_parameters=None, attention_dropout=0.0, pad_token_id=None),
    ]
    attention, layer = "layers.attention", "model.layers.#"
    mlp = rows(f"{layer}.mlp", family.mlp[0], "layers.mlp", family.mlp[1])
    norms = zip(family.norms, ("norm1", "norm2", "attention.norm_out", "mlp.norm_out"), strict=True)
    tensors = {
        "model.embed_tokens.weight": "W_e",
        **{f"{layer}.{name}.*": f"layers.{ours}.*" for name, ours in norms if name != "-"},
        **rows(f"{layer}.self_attn", "q_proj k_proj v_proj o_proj", attention, HEADS),
        **{f"{layer}.self_attn.{a}_norm.weight": f"{attention}.gamma_{a}" for a in "qk"},
        f"{layer}.self_attn.sinks": f"{attention}.s",
        **(mixture_table(MIXTURES[kind]) if kind in MIXTURES else mlp),
        **(of_shared_mlp("layers.mlp.shared") if kind in GRANITES else {}),
        **OUTER,
    }
    return Architecture(
        "d",
        kind,
        PAPER.but(
            embedding=Embedding(positions=None, scaled=family.gemma, normalized=kind == "nanochat"),
            order=family.order,
        ),
        fields,
        tensors,
        _read,
        _write,
        prefix="model.",
        ignored=("*.rotary_emb.inv_freq",),  # in files of 2023
    )


KINDS = {kind: _architecture(kind, family) for kind, family in FAMILIES.items()}
