"""Falcon-H1, by changed lines: attention and Mamba-2 side by side in every layer, and factors of products."""

import math
from typing import Any

from algorithms.lines import Mamba2, Parallel, RMSNorm
from training.interchange.decoders import LINE, VARIANT, Norms, of_lines
from training.interchange.description import Field, Fields, Model, Need, fields_of, written
from training.interchange.errors import InterchangeError
from training.interchange.granite import LIMITS, mamba_rows
from training.interchange.mapping import HEADS, rows
from training.interchange.rotary import Positions

KIND, OURS, MAMBA = "falcon_h1", "attention.attention", "attention.recurrence"
FACTORS = "attention_in_multiplier attention_out_multiplier key_multiplier ssm_in_multiplier ssm_out_multiplier"
"""The fields of single factors."""
OF_MAMBA = 3, 2, 1, 4, 0
"""The place of each of our factors of Mamba-2 in ssm_multipliers: those of C, B, x, Δ and z."""


def _listed(fields: Fields, name: str, n: int) -> list[float]:
    said = fields.get(name, [1.0] * n)
    if not isinstance(said, list) or len(said) != n:
        raise InterchangeError(f"{fields.path}: {name}: expected a list of {n} numbers, got {said!r}")
    return [fields.inner({name: factor}).number(name, 1.0) for factor in said]


def _read(fields: Fields, found: dict[str, Any], names: Any, kind: str) -> None:
    """Read the factors; what multiplies the input of the attention multiplies its scores twice, and its values."""
    read, wrote, of_keys, of_ssm, wrote_ssm = (fields.number(name, 1.0) for name in FACTORS.split())
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
    if fields.get("mamba_d_head", "auto") != "auto":
        found[f"{MAMBA}.d_value"] = fields.integer("mamba_d_head")
    if fields.get("time_step_limit") not in LIMITS:
        fields.needs.append(f"limits of Δ (time_step_limit = {fields.get('time_step_limit')!r})")
    if not fields.flag("mamba_rms_norm", False):
        found[f"{MAMBA}.norm"] = None
    elif fields.flag("mamba_norm_before_gate", True):
        fields.needs.append("a recurrence's norm before its gate")


def _rows_of_values(found: dict[str, Any]) -> int:
    expand, d_ssm = found.pop("expand"), found.pop("d_ssm")
    return max((d_ssm or expand * found["d_e"]) // found[f"{MAMBA}.n"], 1)


def _write(model: Model, state: dict[str, Any], kind: str) -> list[str]:
    c, line = model.config, model.config.variant.attention
    if not isinstance(line, Parallel) or not isinstance(line.recurrence, Mamba2):
        state.clear()
        return ["layers other than an attention and Mamba-2 side by side"]
    mamba, factor = line.recurrence, (line.attention.scale or c.d_attn**-0.5) * math.sqrt(c.d_attn)
    near = float(f"{factor:.15g}"), factor, math.nextafter(factor, 0), math.nextafter(factor, math.inf)
    keys = next((f for f in near if f * c.d_attn**-0.5 == line.attention.scale), factor)
    single = 1.0, line.factors[0], 1.0 if line.attention.scale is None else keys, 1.0, line.factors[1]
    state |= dict(zip(FACTORS.split(), single, strict=True)) | {
        "ssm_multipliers": [mamba.factors[OF_MAMBA.index(i)] for i in range(5)],
        "mlp_multipliers": list(c.variant.mlps[0].factors),
        "mamba_d_head": mamba.d_value,
        "mamba_d_ssm": mamba.n * mamba.d_value,
        "mamba_rms_norm": mamba.norm is not None,
    }
    return []


_LAYER = "model.layers.#"
KINDS = {
    KIND: of_lines(
        f"{KIND} FalconH1",
        *fields_of(
            f"{MAMBA}.n {MAMBA}.n_keys {MAMBA}.d_key {MAMBA}.width",
            "mamba_n_heads mamba_n_groups mamba_d_state mamba_d_conv",
            *(128, 1, 256, 4),
        ),
        *fields_of("embedding.factor unembedding.factor", "embedding_multiplier lm_head_multiplier", 1.0, 1.0),
        Field("mlp_bias", "mlp.biases", False),
        Need("mamba_conv_bias", True, "a convolution without biases"),
        Need("mamba_proj_bias", False, "biases of the projections of a recurrence"),
        Need("projectors_bias", False, "a bias of what a recurrence gives"),
        *written(mamba_conv_bias=True, mamba_proj_bias=False, projectors_bias=False, mamba_norm_before_gate=False),
        Field("mamba_d_ssm", "d_ssm", 1024, optional=int),
        Field("mamba_expand", "expand", 2),
        Field("-", f"{MAMBA}.d_value", _rows_of_values),
        attention=Parallel(
            attention=LINE, recurrence=Mamba2(n=128, n_keys=1, d_key=256, d_value=8, norm=RMSNorm(epsilon=1e-5))
        ),
        positions=[Positions(f"{OURS}.positions")],
        biases=[Field("attention_bias", f"{OURS}.biases", False)],
        variant=VARIANT.but(norm=RMSNorm(epsilon=1e-5)),
        H_kv=8,
        epsilon=1e-5,
        same_epsilon=f"{MAMBA}.norm",
        norms=Norms(mlp="pre_ff_layernorm"),
        modules=("self_attn", "feed_forward"),
        tensors={
            "model.final_layernorm.*": "norm.*",
            **rows(f"{_LAYER}.self_attn", "q_proj k_proj v_proj o_proj", "layers.attention.attention", HEADS),
            **mamba_rows(f"{_LAYER}.mamba", "layers.attention.recurrence"),
        },
        read=_read,
        write=_write,
    )
}
"""By model_type."""
