"""The architectures of GGUF files: one table of how each stores our parameters, and the fields of a config.json.

What GGUF changes is undone when a tensor is read: the order of the rows of q and k, since its rotary positions rotate
adjacent rows (`llama`, `smollm3`), and the 1 added to the scales of norms (`gemma`). In place of the logarithm a of a
recurrence, a file has −e^a; in `qwen35`, heads of values that share keys do not follow one another: the first of each
key come first, then the second of each.
"""

import re
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from training.interchange import gguf_fields as fields
from training.interchange.description import Model, entries_in
from training.interchange.gguf_fields import ROTARY, State, with_rotary
from training.interchange.gguf_file import Keys, Metadata
from training.interchange.mapping import Entry, Shape

NOTHING: Any = MappingProxyType({})
TOKENS, W_U = "token_embd.weight", "output.weight"
OUTER = {TOKENS: "W_e", "position_embd.weight": "W_p", W_U: "W_u"} | {
    f"per_layer_{name}.weight": f"layer_inputs.{ours}"
    for name, ours in (("token_embd", "W_e"), ("model_proj", "W_l"), ("proj_norm", "norm.gamma"))
}


def _table(text: str) -> dict[str, str]:
    """Return our arrays by the tensors of a layer, as in `mapping.entries_of`, or after "=" the number that a tensor
    always has; "-": there is no such tensor.
    """
    words = text.split()
    return dict(zip(words[::2], words[1::2], strict=True))


LAYER = _table("""
    attn_norm.* norm1.*                      ffn_norm.* norm2.*
    post_attention_norm.* attention.norm_out.*                  post_ffw_norm.* mlp.norm_out.*
    attn_q.* attention.heads.*_q             attn_k.* attention.heads.*_k
    attn_v.* attention.heads.*_v             attn_output.* attention.*_o
    attn_q_norm.weight attention.gamma_q     attn_k_norm.weight attention.gamma_k
    attn_sinks.weight attention.s
    ffn_gate.* mlp.*_gate                    ffn_up.* mlp.*_mlp1                   ffn_down.* mlp.*_mlp2
    ffn_gate_shexp.* mlp.shared.*_gate       ffn_up_shexp.* mlp.shared.*_mlp1      ffn_down_shexp.* mlp.shared.*_mlp2
    ffn_gate_exps.* mlp.experts.*_gate/*_gate
    ffn_up_exps.* mlp.experts.*_mlp1/*_mlp1  ffn_down_exps.* mlp.experts.*_mlp2/*_mlp2
    ffn_gate_inp.* mlp.*_r                   ffn_gate_inp_shexp.weight mlp.w_s     exp_probs_b.bias mlp.b_choice
""")
"""Tensors that most architectures have."""
_SECOND = _table("ffn_norm.* -  post_attention_norm.* norm2.*")
_LATENT = _table("""
    attn_q.* attention.*_q&*_qr:W_c!W_cq     attn_q_a.* attention.*_cq             attn_q_a_norm.* attention.norm_q.*
    attn_q_b.* attention.*_q&*_qr:W_cq       attn_kv_a_mqa.* attention.*_c+*_kr    attn_kv_a_norm.* attention.norm_c.*
    attn_k_b.weight ^attention.W_k:W_c       attn_v_b.weight attention.W_v/W_v:W_c
    attn_kv_b.* attention.*_k&*_v:W_c
""")
_INDEXER = _table("""
    indexer.attn_q_b.* attention.index.*_q   indexer.attn_k.* attention.index.*_k
    indexer.k_norm.* attention.index.norm_k.*                   indexer.proj.* attention.index.*_w
""")
_RATES = _table("ssm_a attention.a  ssm_dt.bias attention.b_a  ssm_norm.weight attention.gamma")
_DELTA = _RATES | _table("""
    ffn_norm.* -                             post_attention_norm.* norm2.*
    attn_q.* attention.heads.*_q&layers.attention.*_g
    attn_qkv.weight attention.W_q+W_k+W_v    attn_gate.weight attention.W_z        ssm_out.weight attention.W_out
    ssm_conv1d.weight attention.C_q+C_k+C_v
""")
_KIMI = {**_LATENT, **_RATES} | _table("""
    attn_q.weight attention.W_q:C_q          attn_k.weight attention.W_k:C_k       attn_v.weight attention.W_v:C_v
    ssm_conv1d_q.weight attention.C_q        ssm_conv1d_k.weight attention.C_k     ssm_conv1d_v.weight attention.C_v
    ssm_f_a.weight attention.W_a1            ssm_f_b.weight attention.W_a2         ssm_beta.weight attention.W_b
    ssm_g_a.weight attention.W_z1            ssm_g_b.weight attention.W_z2         attn_output.weight attention.W_out
""")
_MAMBA = _RATES | _table("""
    ssm_in.weight attention.W_z+W_v+W_k+W_q+W_a                 ssm_conv1d.weight attention.C_v+C_k+C_q
    ssm_conv1d.bias attention.b_v+b_k+b_q    ssm_d attention.D                     ssm_out.weight attention.W_out
""")
_FALCON = {name: ours.replace("attention.", "attention.attention.") for name, ours in LAYER.items()} | {
    name: ours.replace("attention.", "attention.recurrence.") for name, ours in _MAMBA.items()
}
_XIELU = _table("""
    ffn_gate.* -                             xielu.alpha_p mlp.alpha_p             xielu.alpha_n mlp.alpha_n
    xielu.beta =0.5                          xielu.eps =-1e-6
""")
_GEMMA4 = _table("""
    layer_output_scale.weight end.s          inp_gate.weight end.W_gate            proj.weight end.W_o
    post_norm.weight end.norm_out.gamma
    ffn_gate_exps.* -                        ffn_up_exps.* -
    ffn_gate_up_exps.weight mlp.experts.W_gate&W_mlp1                              ffn_down_exps.scale mlp.s
    ffn_gate_inp.scale mlp.norms.router.gamma
    ffn_norm.weight mlp.norms.shared.gamma   post_ffw_norm_1.weight mlp.shared.norm_out.gamma
    pre_ffw_norm_2.weight mlp.norms.inputs.gamma                post_ffw_norm_2.weight mlp.norms.outputs.gamma
    ffn_gate_shexp.* -                       ffn_up_shexp.* -                      ffn_down_shexp.* -
    ffn_gate.weight mlp.shared.W_gate        ffn_up.weight mlp.shared.W_mlp1       ffn_down.weight mlp.shared.W_mlp2
""")
_OF_MLP = {name: ours for name, ours in LAYER.items() if ours.startswith(("mlp.", "norm2."))}
_ALONE = dict.fromkeys(_OF_MLP, "-") | {f"+.{n.replace('ffn_norm', 'attn_norm')}": ours for n, ours in _OF_MLP.items()}
"""MLPs that are layers of their own."""
LISTED = ".xielu."
"""In the names of tensors with one number each: the metadata of a file lists the numbers of all layers."""
FLAT = ("ssm_a", "ssm_d", "ssm_norm")
"""Arrays that are one column here, whatever axes they have in a file."""
TAPS = ("conv", "ssm_conv1d", "ssm_conv1d_q", "ssm_conv1d_k", "ssm_conv1d_v")
"""The taps of convolutions: matrices here."""
FLOAT32 = (*FLAT, *TAPS)
"""Tensors that llama.cpp reads in float32."""
OF_VALUES = ("attn_qkv", "attn_gate", "ssm_alpha", "ssm_beta", "ssm_a", "ssm_dt", "ssm_conv1d", "ssm_out")
"""Tensors with rows, or columns (`ssm_out`), of value heads; `attn_qkv` and the taps have others before them."""
HEADS = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}
"""The fields with the number of heads in tensors."""


class Kind(NamedTuple):
    """GGUF's storage of one architecture."""

    names: Keys = ROTARY  # keys of the metadata → the fields of config.json that they are
    rest: Callable[[Metadata, State], State] = lambda m, found: {}  # the metadata, and those → the other fields
    # the fields of config.json → the metadata that are neither in `names` nor in `of_heads`
    derived: Callable[[State], dict[str, Any]] = lambda state: {}
    types: tuple[str, ...] = ()  # its kinds of checkpoints, if not the one with the architecture's name
    base: float | None = 10_000.0  # the default of that of rotary positions; None: `rest` reads them
    defaults: dict[str, float] = NOTHING  # of the fields in `names` that have none there
    constants: State = NOTHING  # the fields that are so in all files, as in llama.cpp
    fixed: State = NOTHING  # the metadata that are so in all files; one that lacks them is read, too
    layer: dict[str, str] = NOTHING  # the tensors of a layer that are not as in `LAYER`
    permuted: bool = False  # whether the rows of q and k have another order
    shifted: bool = False  # whether the scales of norms have 1 added
    by_keys: bool = False  # whether the heads of values of recurrences have another order
    last_norm: str = "output_norm"  # the name of the norm after the last layer
    # what llama.cpp has of models of this kind: no W_u of their own, or one also of those that share W_e; heads that
    # share keys and values
    ties: bool = False
    repeats: bool = False
    shares: bool = True
    # the shapes in a file of what has another one here: numbers, and fields of config.json
    shapes: dict[str, tuple[int | str, ...]] = NOTHING

    def fields(self, m: Metadata) -> State:
        """Return the fields of config.json that the metadata of a model says."""
        read = m.fields(self.names, **self.defaults) if self.base is None else None
        found = {**(read or with_rotary(m, self.names, self.base or 0.0, **self.defaults)), **self.constants}
        for key, value in self.fixed.items():
            m.require(key, value)
        return found | self.rest(m, found)

    def entries(self, model: Model, names: Sequence[str] = ()) -> list[Entry]:
        """Return the tensors of a model that a file has; `names`: of those of a file that is read."""
        joined = any(name.endswith("attn_kv_b.weight") for name in names)  # before April 2025
        left = ("attn_k_b.weight", "attn_v_b.weight") if joined else ("attn_kv_b.*",)
        of_layer = {name: ours for name, ours in {**LAYER, **self.layer}.items() if ours != "-" and name not in left}
        of_layer = {name if name[0] == "+" else f".{name}": ours for name, ours in of_layer.items()}
        table = {
            f"blk.#{name}": float(ours[1:]) if ours[0] == "=" else re.sub(r"^(\^?)", r"\1layers.", ours)
            for name, ours in of_layer.items()
        }
        norm = "encoder_norm.*" if model.task == "e" else "norm.*"
        return entries_in({**OUTER, f"{self.last_norm}.*": norm, **table}, model)

    def written(self, model: Model) -> list[Entry]:
        """Return the tensors to write: W_e once more where llama.cpp asks for W_u."""
        found = self.entries(model)
        has_W_u = any(entry.name == W_U for entry in found)
        again = [entry._replace(name=W_U, aliases=()) for entry in found if entry.name == TOKENS]
        return found + (again if self.repeats and not has_W_u else [])

    def convert(self, name: str, array: np.ndarray, state: State, *, write: bool) -> np.ndarray:
        """Return the numbers of a tensor as our entries have them, or to `write` as a file has them."""
        part = part_of(name)
        if self.permuted and part in HEADS:
            return _reordered(array, state[HEADS[part]], write=write)
        if part == "ssm_a":
            array = array.astype(np.float32)
            array = -np.exp(array) if write else np.log(-array)
        array = _with_values_by_keys(part, array, state, write=write) if self.by_keys else array
        if self.shifted and part.endswith("norm") and part != "ssm_norm":
            return array.astype(np.float32) + np.float32(1 if write else -1)
        return array.reshape(self.shape(name, array.shape, state, write=write))

    def shape(self, name: str, shape: Shape, state: State, *, write: bool) -> Shape:
        """Return the shape of a tensor as our entries have it, or to `write` as a file has it."""
        part = part_of(name)
        if write and part in self.shapes:
            own = [state[size] if isinstance(size, str) else size for size in self.shapes[part]]
            return np.broadcast_to(0, shape).reshape(own).shape
        if write:
            return shape
        if part in FLAT:
            return (int(np.prod(shape)),)
        if part == "ffn_gate_inp_shexp":
            return (1, shape[-1])
        return (int(np.prod(shape[:-1])), shape[-1]) if part in TAPS and len(shape) > 1 else shape


def part_of(name: str) -> str:
    """Return the name of a module in its layer, or of a tensor that has no other."""
    return name.removesuffix(".weight").removesuffix(".bias").rpartition(".")[2]


def _reordered(array: np.ndarray, H: int, *, write: bool) -> np.ndarray:
    """Reorder rows so that rotary positions rotate the halves of a head, or to `write` adjacent rows."""
    if array.shape[0] % (2 * H):
        return array  # the mapping reports the wrong shape
    pairs = (2, -1) if write else (-1, 2)
    return array.reshape(H, *pairs, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def _with_values_by_keys(part: str, array: np.ndarray, state: dict[str, Any], *, write: bool) -> np.ndarray:
    """Return a tensor with the heads of values in the order of `qwen35`, to `write`, or the other way round."""
    n, n_keys = (state[f"linear_num_{kind}_heads"] for kind in ("value", "key"))
    axis, first = int(part == "ssm_out"), 2 * n_keys * state["linear_key_head_dim"] * (part in ("attn_qkv", *TAPS))
    if part not in OF_VALUES or (array.shape[axis] - first) % n or n % n_keys:
        return array  # the mapping reports a wrong shape
    before, values = np.split(np.moveaxis(array, axis, 0), [first])
    heads = (n_keys, n // n_keys) if write else (n // n_keys, n_keys)
    values = values.reshape(*heads, -1, *values.shape[1:]).swapaxes(0, 1).reshape(values.shape)
    return np.moveaxis(np.concatenate([before, values]), 0, axis)


_OF_MAMBA: Any = {"ssm_a": (-1, 1), "ssm_d": (-1, 1)}
_DEEPSEEK = Kind(
    fields.DEEPSEEK,
    fields.deepseek,
    fields.of_deepseek,
    ("deepseek_v3", "deepseek_v2", "glm4_moe_lite"),
    base=None,
    layer=_LATENT,
)
_QWEN35 = Kind(
    fields.DELTA,
    fields.qwen35,
    fields.of_qwen35,
    ("qwen3_5_text",),
    layer=_DELTA | _table("ssm_alpha.weight attention.W_a  ssm_beta.weight attention.W_b"),
    shifted=True,
    by_keys=True,
)
_LFM2 = Kind(
    fields.LFM2,
    fields.lfm2,
    lambda state: fields.heads_of_layers(state, state["num_key_value_heads"]),
    constants={"block_auto_adjust_ff_dim": False, "conv_bias": False},
    layer=_table("""
        shortconv.in_proj.weight attention.W_i+W_y+W_x
        shortconv.conv.weight attention.C  shortconv.out_proj.weight attention.W_out
    """),
    last_norm="token_embd_norm",
)
_NEMOTRON = Kind(
    fields.NEMOTRON,
    fields.nemotron,
    fields.of_nemotron,
    ("nemotron_h",),
    constants={"time_step_min": 0.001},  # of published models; llama.cpp has no smallest Δ
    layer=_MAMBA | _ALONE,
    permuted=True,
    shapes=_OF_MAMBA | {"ssm_norm": ("n_groups", -1)},
)
KINDS: dict[str, Kind] = {
    "llama": Kind(fields.LLAMA, fields.llama, types=("llama", "mistral", "mixtral"), permuted=True),
    "mistral3": Kind(
        ROTARY | fields.OPTIONAL_WINDOW, fields.mistral3, fields.of_mistral3, ("ministral3",), permuted=True
    ),
    "smollm3": Kind(permuted=True),
    "granite": Kind({**ROTARY, **fields.FACTORS}, permuted=True),
    "granitemoe": Kind(
        fields.GRANITE_MOE,
        lambda m, found: {"model_type": "granitemoeshared"} if found[fields.SHARED] else {},
        types=("granitemoe", "granitemoeshared"),
        permuted=True,
    ),
    "arcee": Kind(permuted=True),
    "apertus": Kind(layer=_XIELU, repeats=True),
    "llada": Kind(
        fields.LLADA,
        fields.llada,
        lambda state: {
            "rope.freq_base": state["rope_theta"],
            "rope.dimension_count": state["hidden_size"] // state["num_attention_heads"],
        },
        base=None,
        fixed={"attention.causal": False, "diffusion.shift_logits": False},
        permuted=True,
    ),
    "seed_oss": Kind(layer=_SECOND),
    "ernie4_5": Kind(),
    "ernie4_5-moe": Kind(
        fields.ERNIE_MOE,
        fields.ernie_moe,
        lambda state: {fields.SHARED_LENGTH: state["moe_num_shared_experts"] * state["moe_intermediate_size"]},
        ("ernie4_5_moe",),
        fixed={"interleave_moe_layer_step": 1},
    ),
    "hunyuan-dense": Kind(types=("hunyuan_v1_dense",)),
    "olmo": Kind(fields.OLMO, fixed={"attention.layer_norm_epsilon": 1e-5}, permuted=True),
    "exaone4": Kind(ROTARY | fields.OPTIONAL_WINDOW, fields.exaone4),
    "starcoder2": Kind(fields.STARCODER2),
    "qwen2": Kind(),
    "qwen2moe": Kind(fields.QWEN2_MOE, types=("qwen2_moe",)),
    "glm4moe": Kind(fields.GLM4_MOE, fields.without_later, types=("glm4_moe",), fixed=fields.SIGMOIDS, layer=_SECOND),
    "qwen3": Kind(),
    "olmo2": Kind(ROTARY | fields.OPTIONAL_WINDOW, fields.olmo2, fields.of_olmo, ("olmo2", "olmo3"), repeats=True),
    "glm4": Kind(layer=_table("ffn_gate.* -  ffn_up.* mlp.*_gate+*_mlp1")),
    "cohere2": Kind(fields.COHERE, lambda m, found: fields.layer_types(m, 4), ties=True),
    "minimax-m2": Kind(fields.MINIMAX, types=("minimax_m2",), fixed=fields.SIGMOIDS, repeats=True),
    "llama4": Kind(fields.LLAMA4, fields.llama4, fields.of_llama4, ("llama4_text",)),
    "qwen3moe": Kind(
        {**ROTARY, **fields.CHOICE, **fields.WIDTH}, types=("qwen3_moe",), constants={"norm_topk_prob": True}
    ),
    "olmoe": Kind({**ROTARY, **fields.CHOICE}, repeats=True, shares=False),
    "gpt-oss": Kind(
        fields.GPT_OSS,
        fields.gpt_oss,
        types=("gpt_oss",),
        base=150_000.0,
        defaults={"sliding_window": 128},
        layer=_SECOND,
        repeats=True,
    ),
    "deepseek2": _DEEPSEEK,
    "glm-dsa": _DEEPSEEK._replace(
        names=fields.GLM_DSA,
        rest=lambda m, found: fields.deepseek(m, found) | fields.without_later(m, found),
        types=("glm_moe_dsa",),
        fixed=fields.SIGMOIDS,
        layer=_LATENT | _INDEXER,
    ),
    "gemma": Kind(shifted=True, ties=True),
    "gemma2": Kind(
        {**ROTARY, **fields.WINDOW, **fields.CAPS},
        lambda m, found: fields.windows(m, found, 2, largest=46),
        defaults={"sliding_window": 4096, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
        shifted=True,
        ties=True,
    ),
    "gemma3": Kind(
        {**ROTARY, **fields.WINDOW, **fields.CAP_OF_LOGITS},
        fields.gemma3,
        types=("gemma3_text",),
        base=1_000_000.0,
        defaults={"sliding_window": 1024},
        shifted=True,
        ties=True,
    ),
    "gemma4": Kind(fields.GEMMA4, fields.gemma4, fields.of_gemma4, ("gemma4_text",), base=None, layer=_GEMMA4),
    "qwen3next": Kind(
        fields.QWEN3_NEXT,
        derived=fields.interval_of,
        types=("qwen3_next",),
        constants={"norm_topk_prob": True},
        layer={**_DELTA, "ssm_ba.weight": "attention.W_b&W_a/W_q"},
        shifted=True,
    ),
    "qwen35": _QWEN35,
    "qwen35moe": _QWEN35._replace(names=fields.QWEN35_MOE, types=("qwen3_5_moe_text",)),
    "granitehybrid": Kind(
        fields.MAMBA,
        fields.granite_hybrid,
        fields.of_granite_hybrid,
        ("granitemoehybrid",),
        layer=_MAMBA,
        permuted=True,
        shapes=_OF_MAMBA | {"ssm_norm": ("mamba_n_groups", -1)},
    ),
    "falcon-h1": Kind(
        fields.FALCON,
        lambda m, found: {"mamba_rms_norm": m.has("blk.0.ssm_norm.weight")},
        types=("falcon_h1",),
        constants={"mamba_norm_before_gate": False},
        layer=_FALCON,
        shapes=_OF_MAMBA | {"ssm_norm": ("mamba_n_groups", -1)},
    ),
    "lfm2": _LFM2,
    "lfm2moe": _LFM2._replace(names=fields.LFM2_MOE, types=("lfm2_moe",), fixed=fields.SIGMOIDS),
    "nemotron_h_moe": _NEMOTRON,
    "nemotron_h": _NEMOTRON,
    "kimi-linear": Kind(
        fields.KIMI,
        fields.kimi,
        fields.of_kimi,
        ("kimi_linear",),
        base=None,
        fixed=fields.SIGMOIDS | {"expert_weights_norm": True},
        layer=_KIMI,
        repeats=True,
        shapes={"ssm_a": (-1, 1), **dict.fromkeys(TAPS[2:], (-1, 1, "linear_conv_kernel_dim"))},
    ),
    "gpt2": Kind(
        fields.GPT2,
        base=None,
        layer=_table("attn_q.* -  attn_k.* -  attn_v.* -  attn_qkv.* attention.heads.*_q+*_k+*_v"),
    ),
}
"""By general.architecture."""
