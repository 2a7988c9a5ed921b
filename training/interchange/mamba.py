"""Models with Mamba-2, by changed lines: Granite 4, Bamba and Nemotron-H in most layers, Falcon-H1 beside attention."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from algorithms import GRANITE_HYBRID
from algorithms.lines import MLP, Attention, Experts, Mamba2, Parallel, RMSNorm
from training.interchange import description
from training.interchange.decoders import FACTORS, LINE, OF_SIZES, SILU, SIZES, Norms, of_lines
from training.interchange.description import Field, Fields, Layers, Model, Need, fields_of, only, written
from training.interchange.errors import InterchangeError
from training.interchange.experts import GRANITE, NEMOTRON, SHARED, of_shared_mlp
from training.interchange.hybrids import LINEAR
from training.interchange.mapping import HEADS, HIDDEN, rows
from training.interchange.rotary import FULL, Positions

LIMITS = None, [0.0, float("inf")], [0.0, {"__float__": "Infinity"}]
"""The value of time_step_limit for no limit."""
_LAYER = "model.layers.#"


def _of_mamba(path: str, *fields: Any) -> list[Any]:
    """Return the fields of Mamba-2 at a path, between which there are other `fields`."""
    ours = " ".join(f"{path}.{size}" for size in ("n", "n_keys", "d_key", "width"))

    def rows_of_values(found: dict[str, Any]) -> int:
        expand, d_ssm = found.pop("expand"), found.pop("d_ssm", None)
        return max((d_ssm or expand * found["d_e"]) // found[f"{path}.n"], 1)

    return [
        *fields_of(ours, "mamba_n_heads mamba_n_groups mamba_d_state mamba_d_conv", 128, 1, 256, 4),
        *fields,
        *only("mamba_conv_bias", True, "a convolution without biases"),
        *only("mamba_proj_bias", False, "biases of the projections of a recurrence"),
        Field("mamba_expand", "expand", 2),
        Field("-", f"{path}.d_value", rows_of_values),
    ]


def _read_rows(fields: Fields, found: dict[str, Any], path: str) -> None:
    if fields.get("mamba_d_head", "auto") != "auto":
        found[f"{path}.d_value"] = fields.integer("mamba_d_head")
    _read_limits(fields)


def _read_limits(fields: Fields) -> None:
    if fields.get("time_step_limit") not in LIMITS:
        fields.needs.append(f"limits of Δ (time_step_limit = {fields.get('time_step_limit')!r})")


def _tensors_of(mamba: str, ours: str = "layers.attention") -> dict[str, str]:
    """Return the tensors of Mamba-2 in a layer."""
    return {
        f"{mamba}.in_proj.weight": f"{ours}.W_z+W_v+W_k+W_q+W_a",
        f"{mamba}.conv1d.weight": f"<{ours}.C_v+C_k+C_q>",
        f"{mamba}.conv1d.bias": f"{ours}.b_v+b_k+b_q",
        f"{mamba}.dt_bias": f"{ours}.b_a",
        f"{mamba}.A_log": f"{ours}.a",
        f"{mamba}.D": f"{ours}.D",
        f"{mamba}.norm.weight": f"{ours}.gamma",
        f"{mamba}.out_proj.weight": f"{ours}.W_out",
    }


# Granite 4 and Bamba

GRANITE_4 = "granitemoehybrid"
NAMES = {"mamba": LINEAR, "attention": FULL}


def _read_granite(fields: Fields, found: dict[str, Any], names: Sequence[Any], kind: str) -> None:
    _read_rows(fields, found, LINEAR)
    if kind != GRANITE_4:
        return
    if fields.get("position_embedding_type") != "rope":
        found["attention.positions"] = None
    if fields.integer("num_local_experts", 8, least=0) == 0:
        found["d_mlp"] = fields.integer(SHARED, 1024)
    else:
        GRANITE.read(fields, found)


def _write_granite(model: Model, state: dict[str, Any], kind: str) -> list[str]:
    c, v = model.config, model.config.variant
    mamba = next(line for line in v.attentions if isinstance(line, Mamba2))
    attention = next((line for line in v.attentions if isinstance(line, Attention)), None)
    d_v = mamba.n * mamba.d_value
    state |= {"mamba_d_head": mamba.d_value, "mamba_expand": max(d_v // c.d_e, 1)}
    lacks = description.unlike(d_v % c.d_e, 0, f"values of {d_v} rows, which are no multiple of d_e = {c.d_e}")
    if kind != GRANITE_4:
        return lacks
    state["position_embedding_type"] = "rope" if attention and attention.positions else None
    if isinstance(v.mlp, Experts):
        GRANITE.fill(state, c, {})
    else:
        state |= {"num_local_experts": 0, SHARED: c.d_mlp}
    return lacks


def _granite_tensors(model: Model, state: dict[str, Any], kind: str) -> dict[str, str]:
    ours = "layers.mlp.shared" if isinstance(model.config.variant.mlp, Experts) else "layers.mlp"
    return _tensors_of(f"{_LAYER}.mamba") | GRANITE.table | of_shared_mlp(ours)


_OF_GRANITE: dict[str, Any] = {"same_epsilon": f"{LINEAR}.norm", "read": _read_granite, "write": _write_granite}

# Falcon-H1, with factors of products

OURS, MAMBA = "attention.attention", "attention.recurrence"
FALCON_FACTORS = [f"{name}_multiplier" for name in ("attention_in", "attention_out", "key", "ssm_in", "ssm_out")]
"""The fields of single factors."""
OF_MAMBA = 3, 2, 1, 4, 0
"""The place of each of our factors of Mamba-2 in ssm_multipliers: those of C, B, x, Δ and z."""


def _listed(fields: Fields, name: str, n: int) -> list[float]:
    said = fields.get(name, [1.0] * n)
    if not isinstance(said, list) or len(said) != n:
        raise InterchangeError(f"{fields.path}: {name}: expected a list of {n} numbers, got {said!r}")
    return [fields.inner({name: factor}).number(name, 1.0) for factor in said]


def _read_falcon(fields: Fields, found: dict[str, Any], names: Any, kind: str) -> None:
    """Read the factors; what multiplies the input of the attention multiplies its scores twice, and its values."""
    read, wrote, of_keys, of_ssm, wrote_ssm = (fields.number(name, 1.0) for name in FALCON_FACTORS)
    ssm, mlp = _listed(fields, "ssm_multipliers", 5), _listed(fields, "mlp_multipliers", 2)
    scores = of_keys * read**2
    found[f"{OURS}.scale"] = None if scores == 1 else scores * found["d_attn"] ** -0.5
    found["attention.factors"] = read * wrote, wrote_ssm
    found[f"{MAMBA}.factors"] = tuple(of_ssm * ssm[i] for i in OF_MAMBA)
    found["mlp.factors"] = tuple(mlp)
    if found[f"{OURS}.biases"] and read != 1:
        fields.needs.append("a factor of an attention's input beside biases")
    if found["mlp.biases"] and mlp[1] != 1:
        fields.needs.append("a factor of an MLP's output beside biases")
    _read_rows(fields, found, MAMBA)
    is_normalized = fields.flag("mamba_rms_norm", False)
    found[f"{MAMBA}.norm"] = RMSNorm(epsilon=found["norm.epsilon"]) if is_normalized else None
    if is_normalized and fields.flag("mamba_norm_before_gate", True):
        fields.needs.append("a recurrence's norm before its gate")


def _write_falcon(model: Model, state: dict[str, Any], kind: str) -> list[str]:
    c, line = model.config, model.config.variant.attention
    if not isinstance(line, Parallel) or not isinstance(line.recurrence, Mamba2):
        state.clear()
        return ["layers other than an attention and Mamba-2 side by side"]
    mamba, factor = line.recurrence, (line.attention.scale or c.d_attn**-0.5) * math.sqrt(c.d_attn)
    near = float(f"{factor:.15g}"), factor, math.nextafter(factor, 0), math.nextafter(factor, math.inf)
    keys = next((f for f in near if f * c.d_attn**-0.5 == line.attention.scale), factor)
    single = 1.0, line.factors[0], 1.0 if line.attention.scale is None else keys, 1.0, line.factors[1]
    state |= dict(zip(FALCON_FACTORS, single, strict=True)) | {
        "ssm_multipliers": [mamba.factors[OF_MAMBA.index(i)] for i in range(5)],
        "mlp_multipliers": list(c.variant.mlps[0].factors),
        "mamba_d_head": mamba.d_value,
        "mamba_d_ssm": mamba.n * mamba.d_value,
        "mamba_rms_norm": mamba.norm is not None,
    }
    return []


# Nemotron-H and Nemotron 3: in files, attentions, Mamba-2 and MLPs are layers of their own. Each of ours begins with an
# attention or Mamba-2, and has the MLP that follows it, if one does

TYPES = "layers_block_type"
DENSE, SPARSE = "mlp", "moe"
OF_LETTERS = {"M": LINEAR, "*": FULL, "-": DENSE, "E": SPARSE}


def kinds_of(fields: Fields) -> list[str]:
    """Return the kind of each layer of a file."""
    letters = [OF_LETTERS.get(letter, letter) for letter in str(fields.get("hybrid_override_pattern", "ME*-"))]
    said: list[Any] = [NAMES.get(kind, kind) for kind in fields.items(TYPES, letters)]
    found = Layers(lambda *_: said, "-").of(fields, len(said), [*OF_LETTERS.values()])
    follows = [kind in (DENSE, SPARSE) for kind in found]
    if not found or any(mlp and before for mlp, before in zip(follows, [True, *follows], strict=False)):
        fields.needs.append("an MLP that follows neither an attention nor a recurrence")
        return [LINEAR]
    return found


def _read_nemotron(fields: Fields, found: dict[str, Any], names: Sequence[Any], kind: str) -> None:
    """Add the number of our layers, their MLPs, and the hidden units of these to what was found."""
    types, of_experts = kinds_of(fields), {}
    activation, biases = fields.activation("mlp_hidden_act", "relu2"), fields.flag("mlp_bias", False)
    by_kind: dict[str, Any] = {DENSE: MLP(activation=activation, biases=biases)}
    found["d_mlp"] = fields.integer("intermediate_size", 21504)
    if SPARSE in types:
        NEMOTRON.read(fields, of_experts)
        width = of_experts["d_mlp"]
        found["d_mlp"] = found["d_mlp"] if DENSE in types else width
        by_kind[SPARSE] = of_experts["mlp"].but(d_mlp=None if width == found["d_mlp"] else width)
    after = zip(types, [*types[1:], None], strict=True)
    mlps = [by_kind.get(following or "") for kind, following in after if kind in (LINEAR, FULL)]
    found |= {"L": len(mlps), "mlp": description.in_turn(mlps)}
    _read_limits(fields)


def _write_nemotron(model: Model, state: dict[str, Any], kind: str) -> list[str]:
    c, types = model.config, []
    of_layers = [c.variant.lines(l) for l in range(c.L)]
    for line in of_layers:
        kinds = [] if line.mlp is None else [SPARSE] if isinstance(line.mlp, Experts) else [DENSE]
        types += [LINEAR if isinstance(line.attention, Mamba2) else FULL, *kinds]
    state |= {TYPES: types, "num_hidden_layers": len(types)}
    for mlp in {type(line.mlp): line.mlp for line in of_layers if line.mlp}.values():
        own = dataclasses.replace(c, d_mlp=mlp.d_mlp or c.d_mlp)
        state |= {"mlp_hidden_act": description.theirs(mlp.activation or "gelu"), "mlp_bias": mlp.biases}
        if isinstance(mlp, Experts):
            NEMOTRON.fill(state, own, {})
        else:
            state["intermediate_size"] = own.d_mlp
    return []


_MIXER, _MLP = "layers.#.mixer", "layers.#+.mixer"
_NEMOTRON_TENSORS = {
    "embeddings.weight": "W_e",
    "layers.#.norm.*": "layers.norm1.*",
    **rows(_MIXER, "q_proj k_proj v_proj o_proj", "layers.attention", HEADS),
    **_tensors_of(_MIXER),
    "layers.#+.norm.*": "layers.norm2.*",
    **rows(_MLP, "up_proj down_proj", "layers.mlp", HIDDEN),
    f"{_MLP}.gate.weight": "layers.mlp.W_r",
    f"{_MLP}.gate.e_score_correction_bias": "layers.mlp.b_choice",
    **rows(f"{_MLP}.experts.@", "up_proj down_proj", "layers.mlp.experts", HIDDEN),
    **rows(f"{_MLP}.shared_experts", "up_proj down_proj", "layers.mlp.shared", HIDDEN),
    "norm_f.*": "norm.*",
}
_OF_NEMOTRON = " ".join(f"{LINEAR}.{size}" for size in ("n", "n_keys", "d_key", "d_value", "width", "delta_min"))
KINDS = {
    GRANITE_4: of_lines(
        f"{GRANITE_4} GraniteMoeHybrid GRANITE_HYBRID",
        *(*_of_mamba(LINEAR), *FACTORS),
        activation=SILU,
        kinds=(LINEAR, FULL),
        epsilon=1e-6,
        tied=False,
        mlp=("", ""),
        tensors=_granite_tensors,
        layers=Layers(lambda fields, L: [LINEAR] * L, "layer_types|layers_block_type", NAMES),
        **_OF_GRANITE,
    ),
    "bamba": of_lines(
        "bamba Bamba LLAMA",
        *(*_of_mamba(LINEAR), Field("mlp_bias", "mlp.biases", False)),
        *written(attn_layer_indices=lambda c: [l for l in range(c.L) if type(c.variant.attention_of(l)) is Attention]),
        positions=[Positions(share=0.5)],
        norms=Norms(mlp="pre_ff_layernorm"),
        modules=("self_attn", "feed_forward"),
        tensors={"model.final_layernorm.*": "norm.*", **_tensors_of(f"{_LAYER}.mamba")},
        lines={LINEAR: GRANITE_HYBRID.attentions[0], FULL: LINE},
        layers=Layers(
            lambda fields, L: [(LINEAR, FULL)[l in fields.items("attn_layer_indices", ())] for l in range(L)], "-"
        ),
        H_kv=8,
        **_OF_GRANITE,
    ),
    "falcon_h1": of_lines(
        "falcon_h1 FalconH1 FALCON_H1",
        *_of_mamba(
            MAMBA,
            *fields_of("embedding.factor unembedding.factor", "embedding_multiplier lm_head_multiplier", 1.0, 1.0),
            Field("mlp_bias", "mlp.biases", False),
            *only("projectors_bias", False, "a bias of what a recurrence gives"),
            Field("mamba_d_ssm", "d_ssm", 1024, optional=int),
            *written(mamba_norm_before_gate=False),
        ),
        positions=[Positions(f"{OURS}.positions")],
        biases=[Field("attention_bias", f"{OURS}.biases", False)],
        H_kv=8,
        norms=Norms(mlp="pre_ff_layernorm"),
        modules=("self_attn", "feed_forward"),
        tensors={
            "model.final_layernorm.*": "norm.*",
            **rows(f"{_LAYER}.self_attn", "q_proj k_proj v_proj o_proj", "layers.attention.attention", HEADS),
            **_tensors_of(f"{_LAYER}.mamba", "layers.attention.recurrence"),
        },
        read=_read_falcon,
        write=_write_falcon,
    ),
    "nemotron_h": of_lines(
        "nemotron_h NemotronH NEMOTRON_H",
        *fields_of(_OF_NEMOTRON, "mamba_num_heads n_groups ssm_state_size mamba_head_dim conv_kernel time_step_min"),
        Need("use_conv_bias", True, "a convolution without biases"),
        Need("use_bias", False, "biases of the projections of a recurrence"),
        Need("mamba_hidden_act", "silu", "another nonlinearity"),
        Need("moe_latent_size", None, "experts of a latent"),
        Need("sliding_window", None, "windows"),
        positions=(),
        activation=(),
        sizes=[field for field in fields_of(SIZES, OF_SIZES) if field.ours not in ("L", "d_mlp")],
        heads=[Field("num_key_value_heads", "H_kv", 8), Field("head_dim|attention_head_dim", "d_attn d_mid", 128)],
        kinds=(LINEAR, FULL),
        of_epsilon="layer_norm_epsilon",
        same_epsilon=f"{LINEAR}.norm",
        tensors={f"backbone.{name}|model.{name}": ours for name, ours in _NEMOTRON_TENSORS.items()},
        read=_read_nemotron,
        write=_write_nemotron,
        in_turn=True,
        layers=Layers(lambda fields, L: [kind for kind in kinds_of(fields) if kind in (LINEAR, FULL)], "-"),
        ignored=("mtp.*",),
    ),
}
"""By model_type."""
