"""The architectures of GGUF files: one table of how each stores what a checkpoint of `transformers` has.

What GGUF changes is undone when a tensor is read: the order of the rows of q and k, since its rotary positions rotate
adjacent rows (`llama`, `smollm3`); the 1 added to the scales of norms (`gemma`); and the matrices that `Conv1D`
transposes (`gpt2`).
"""

import functools
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from training.interchange import gguf_fields as fields
from training.interchange.gguf_fields import State
from training.interchange.gguf_file import Metadata
from training.interchange.gguf_hybrids import flat, with_rates, with_values_by_keys
from training.interchange.gguf_rotary import ROTARY, with_rotary
from training.interchange.mapping import Shape

NOTHING: Any = MappingProxyType({})


def _mlp(theirs: str, ours: str = "") -> dict[str, str]:
    """Return the names of the linear maps of an MLP in transformers by those in GGUF, which end with `ours`."""
    return {f"ffn_{a}{ours}": f"{theirs}.{a}_proj" for a in ("gate", "up", "down")}


def _rates(theirs: str) -> dict[str, str]:
    """Return the names of the two parameters of a recurrence's decay."""
    return {"ssm_a": f"{theirs}.A_log", "ssm_dt.bias": f"{theirs}.dt_bias"}


_LINEARS = {
    **{f"attn_{a}": f"self_attn.{a}_proj" for a in "qkv"},
    "attn_output": "self_attn.o_proj",
    **_mlp("mlp"),
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_norm": "input_layernorm",
}
_EXPERTS = _mlp("mlp.experts", "_exps")
_LLAMA = {**_LINEARS, **_EXPERTS, "ffn_norm": "post_attention_layernorm", "ffn_gate_inp": "block_sparse_moe.gate"}
_QWEN_MOE = {**_LLAMA, "ffn_gate_inp": "mlp.gate"}
_OLMO2 = {**_LINEARS, "post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
_GLM4 = {
    **_LINEARS,
    "ffn_up": "mlp.gate_up_proj",
    "ffn_norm": "post_attention_layernorm",
    "post_attention_norm": "post_self_attn_layernorm",
    "post_ffw_norm": "post_mlp_layernorm",
}
_MINIMAX = {**_LLAMA, "exp_probs_b": "block_sparse_moe.e_score_correction"}
_LLAMA4 = {
    **_LLAMA,
    **_mlp("feed_forward"),
    **_mlp("feed_forward.shared_expert", "_shexp"),
    "ffn_gate_inp": "feed_forward.router",
}
_GEMMA2 = {**_OLMO2, "ffn_norm": "pre_feedforward_layernorm"}
_GPT_OSS = {
    **_LINEARS,
    **_EXPERTS,
    "post_attention_norm": "post_attention_layernorm",
    "attn_sinks": "self_attn.sinks",
    "ffn_gate_inp": "mlp.router",
}
_DEEPSEEK = {
    **_QWEN_MOE,
    **{f"attn_{a}": f"self_attn.{a}_proj" for a in ("q_a", "q_b", "k_b", "v_b", "kv_b")},
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    **{f"attn_{a}_norm": f"self_attn.{a}_layernorm" for a in ("q_a", "kv_a")},
    **_mlp("mlp.shared_experts", "_shexp"),
    "exp_probs_b": "mlp.gate.e_score_correction",
}
_QWEN3_NEXT = {
    **{name: theirs for name, theirs in _QWEN_MOE.items() if name != "ffn_norm"},
    **_mlp("mlp.shared_expert", "_shexp"),
    "post_attention_norm": "post_attention_layernorm",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_ba": "linear_attn.in_proj_ba",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
}
_QWEN35 = {**_QWEN3_NEXT, **_mlp("mlp"), "ssm_alpha": "linear_attn.in_proj_a", "ssm_beta": "linear_attn.in_proj_b"}
_GRANITE_HYBRID = {
    **_LLAMA,
    "ffn_gate_inp": "block_sparse_moe.router.layer",
    **_mlp("shared_mlp", "_shexp"),
    "ssm_in": "mamba.in_proj",
    "ssm_conv1d": "mamba.conv1d",
    "ssm_norm": "mamba.norm",
    "ssm_out": "mamba.out_proj",
}
_GRANITE_MOE = {name: theirs for name, theirs in _GRANITE_HYBRID.items() if not name.startswith("ssm_")}
_KIMI = {
    **_DEEPSEEK,
    "ffn_gate_inp": "block_sparse_moe.gate",
    "exp_probs_b": "block_sparse_moe.gate.e_score_correction",
    **_mlp("block_sparse_moe.shared_experts", "_shexp"),
    **{f"ssm_conv1d_{a}": f"self_attn.{a}_conv1d" for a in "qkv"},
    **{f"ssm_{gate}_{a}": f"self_attn.{gate}_{a}_proj" for gate in "fg" for a in "ab"},
    "ssm_beta": "self_attn.b_proj",
    "ssm_norm": "self_attn.o_norm",
}
_GPT2 = {
    "attn_norm": "ln_1",
    "attn_qkv": "attn.c_attn",
    "attn_output": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj",
}
_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_GPT2_OUTER = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
}


def _inverse(names: Mapping[str, str]) -> dict[str, str]:
    return {theirs: ours for ours, theirs in names.items()}


class Kind(NamedTuple):
    """How GGUF stores models of one architecture."""

    names: dict[str, str] = ROTARY  # keys of the metadata → the fields of config.json that they are
    rest: Callable[[Metadata, State], State] = lambda m, found: {}  # the metadata, and those → the other fields
    # the fields of config.json → the metadata that are in neither `names`, `optional` nor `of_heads`
    derived: Callable[[State], dict[str, Any]] = lambda state: {}
    types: tuple[str, ...] = ()  # its kinds of checkpoints, if not the one with the architecture's name
    optional: dict[str, str] = NOTHING  # further keys that are fields, which `rest` reads
    read: Callable[[Metadata, dict[str, str]], State] = with_rotary  # the metadata, and `names` → their fields
    constants: State = NOTHING  # the fields that are so in all files, as in llama.cpp
    outer: dict[str, str] = _OUTER  # names of modules outside the layers → those in transformers
    inner: dict[str, str] = _LLAMA  # names of modules in a layer → those in transformers
    layers: str = "model.layers"  # the name of the layers' module
    permuted: bool = False  # whether the rows of q and k have another order
    shifted: bool = False  # whether the scales of norms have 1 added
    by_keys: bool = False  # whether the heads of values of recurrences have another order
    # what llama.cpp has of models of this kind: no W_u of their own, or one also of those that share W_e; heads that
    # share keys and values
    ties: bool = False
    repeats: bool = False
    shares: bool = True
    transposed: tuple[str, ...] = ()  # the modules in a layer whose matrices are transposed
    plain: dict[str, str] = NOTHING  # whole names of tensors in a layer, where one ends with no weight or bias
    # the shapes in a file of what `flat` shapes here, by the fields of config.json, if they are others
    shapes: dict[str, Callable[[State], Shape]] = NOTHING

    def name(self, theirs: str) -> str:
        """Return the name in GGUF of a tensor of transformers."""
        module, _, field = theirs.rpartition(".")
        layer, _, part = module.removeprefix(f"{self.layers}.").partition(".")
        if module.startswith(f"{self.layers}.") and layer.isdigit():
            plain = _inverse(self.plain).get(f"{part}.{field}")
            if plain is not None:
                return f"blk.{layer}.{plain}"
            return f"blk.{layer}.{_inverse(self.inner)[part]}.{field}"
        return f"{_inverse(self.outer)[module]}.{field}"

    def theirs(self, name: str) -> str:
        """Return the name of a tensor in transformers; if it has none there, its own, which no model expects."""
        layer, _, tail = name.removeprefix("blk.").partition(".")
        if name.startswith("blk.") and layer.isdigit() and tail in self.plain:
            return f"{self.layers}.{layer}.{self.plain[tail]}"
        parts = re.fullmatch(r"(?:blk\.(?P<layer>\d{1,9})\.)?(?P<module>\w+)\.(?P<field>weight|bias)", name)
        if not parts:
            return name
        module = (self.inner if parts["layer"] else self.outer).get(parts["module"])
        if module is None:
            return name
        return ".".join([*([self.layers, parts["layer"]] if parts["layer"] else []), module, parts["field"]])

    def convert(self, name: str, array: np.ndarray, state: State, *, write: bool) -> np.ndarray:
        """Return the numbers of a tensor, of a name in GGUF, as transformers has them, or to `write` as GGUF has."""
        part = part_of(name)
        heads = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}.get(part)
        if self.permuted and heads:
            return _reordered(array, state[heads], write=write)
        array = with_rates(array, write=write) if part == "ssm_a" else array
        array = with_values_by_keys(part, array, state, write=write) if self.by_keys else array
        if self.shifted and part.endswith("norm") and part != "ssm_norm":
            return array.astype(np.float32) + np.float32(1 if write else -1)
        if part in self.transposed and array.ndim == 2:
            return array.T
        return array.reshape(self.shape(name, array.shape, state, write=write))

    def shape(self, name: str, shape: Shape, state: State, *, write: bool) -> Shape:
        """Return the shape of a tensor, of a name in GGUF, as transformers has it, or to `write` as GGUF has it."""
        part = part_of(name)
        if part in self.transposed and len(shape) == 2:
            return shape[::-1]
        if not write:
            return flat(part, shape)
        return np.broadcast_to(0, shape).reshape(self.shapes[part](state)).shape if part in self.shapes else shape


def part_of(name: str) -> str:
    """Return the name of a module in its layer, or of a tensor that has no other, from that of a tensor in GGUF."""
    return name.removesuffix(".weight").removesuffix(".bias").rpartition(".")[2]


def _reordered(array: np.ndarray, H: int, *, write: bool) -> np.ndarray:
    """Reorder rows so that rotary positions rotate the halves of a head, or to `write` adjacent rows."""
    if array.shape[0] % (2 * H):
        return array  # the mapping reports the wrong shape
    pairs = (2, -1) if write else (-1, 2)
    return array.reshape(H, *pairs, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


KINDS: dict[str, Kind] = {
    "llama": Kind(
        rest=fields.llama,
        types=("llama", "mistral", "mixtral"),
        optional={**fields.WINDOW, **fields.MIXTRAL},
        permuted=True,
    ),
    "smollm3": Kind(permuted=True),
    "granite": Kind({**ROTARY, **fields.FACTORS}, permuted=True),
    "granitemoe": Kind(
        {**ROTARY, **fields.FACTORS, **fields.MIXTRAL},
        fields.granite_moe,
        fields.of_granite_moe,
        ("granitemoe", "granitemoeshared"),
        inner=_GRANITE_MOE,
        permuted=True,
    ),
    "qwen2": Kind(),
    "qwen3": Kind(),
    "olmo2": Kind(ROTARY, fields.olmo2, fields.of_olmo, ("olmo2", "olmo3"), fields.WINDOW, inner=_OLMO2, repeats=True),
    "glm4": Kind(inner=_GLM4),
    "cohere2": Kind(fields.COHERE, fields.cohere2, inner=_LINEARS, ties=True),
    "minimax-m2": Kind(
        fields.MINIMAX,
        fields.minimax,
        fields.of_sigmoids,
        ("minimax_m2",),
        read=fields.experts_in,
        inner=_MINIMAX,
        repeats=True,
    ),
    "llama4": Kind(fields.LLAMA4, fields.llama4, fields.of_llama4, ("llama4_text",), inner=_LLAMA4),
    "qwen3moe": Kind(
        {**ROTARY, **fields.CHOICE, **fields.WIDTH},
        types=("qwen3_moe",),
        constants={"norm_topk_prob": True},
        inner=_QWEN_MOE,
    ),
    "olmoe": Kind({**ROTARY, **fields.CHOICE}, inner=_QWEN_MOE, repeats=True, shares=False),
    "gpt-oss": Kind(
        fields.GPT_OSS,
        fields.gpt_oss,
        types=("gpt_oss",),
        read=functools.partial(fields.experts_in, base=150_000.0, sliding_window=128),
        inner=_GPT_OSS,
        repeats=True,
    ),
    "deepseek2": Kind(
        fields.LATENTS,
        fields.deepseek,
        fields.of_deepseek,
        ("deepseek_v3", "deepseek_v2"),
        fields.DEEPSEEK_OPTIONAL,
        read=Metadata.fields,
        inner=_DEEPSEEK,
    ),
    "gemma": Kind(shifted=True, ties=True),
    "gemma2": Kind(
        {**ROTARY, **fields.WINDOW, **fields.CAPS},
        fields.gemma2,
        read=functools.partial(
            with_rotary, sliding_window=4096, attn_logit_softcapping=50.0, final_logit_softcapping=30.0
        ),
        inner=_GEMMA2,
        shifted=True,
        ties=True,
    ),
    "gemma3": Kind(
        {**ROTARY, **fields.WINDOW},
        fields.gemma3,
        types=("gemma3_text",),
        optional=fields.CAPS,
        read=functools.partial(with_rotary, base=1_000_000.0, sliding_window=1024),
        inner=_GEMMA2,
        shifted=True,
        ties=True,
    ),
    "qwen3next": Kind(
        fields.QWEN3_NEXT,
        fields.delta,
        fields.of_delta,
        ("qwen3_next",),
        constants={"norm_topk_prob": True},
        inner=_QWEN3_NEXT,
        shifted=True,
        plain=_rates("linear_attn"),
    ),
    "qwen35": Kind(
        fields.DELTA,
        fields.qwen35,
        fields.of_qwen35,
        ("qwen3_5_text",),
        inner=_QWEN35,
        shifted=True,
        by_keys=True,
        plain=_rates("linear_attn"),
    ),
    "granitehybrid": Kind(
        fields.MAMBA,
        fields.granite_hybrid,
        fields.of_granite_hybrid,
        ("granitemoehybrid",),
        inner=_GRANITE_HYBRID,
        permuted=True,
        plain={**_rates("mamba"), "ssm_d": "mamba.D"},
        shapes={
            **dict.fromkeys(("ssm_a", "ssm_d"), lambda state: (-1, 1)),
            "ssm_norm": lambda state: (state["mamba_n_groups"], -1),
        },
    ),
    "kimi-linear": Kind(
        fields.KIMI,
        fields.kimi,
        fields.of_kimi,
        ("kimi_linear",),
        read=Metadata.fields,
        inner=_KIMI,
        repeats=True,
        plain=_rates("self_attn"),
        shapes={
            "ssm_a": lambda state: (-1, 1),
            **dict.fromkeys(
                ("ssm_conv1d_q", "ssm_conv1d_k", "ssm_conv1d_v"), lambda state: (-1, 1, state["linear_conv_kernel_dim"])
            ),
        },
    ),
    "gpt2": Kind(
        fields.GPT2,
        read=Metadata.fields,
        outer=_GPT2_OUTER,
        inner=_GPT2,
        layers="transformer.h",
        transposed=("attn_qkv", "attn_output", "ffn_up", "ffn_down"),
    ),
}
"""By general.architecture."""
