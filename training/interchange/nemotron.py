"""Nemotron-H and Nemotron 3, by changed lines: in files, attentions, Mamba-2 and MLPs are layers of their own.

Each of ours begins with an attention or Mamba-2, and has the MLP that follows it, if one does.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from algorithms.lines import MLP, Experts, Mamba2, RMSNorm
from training.interchange.decoders import LINE, OF_SIZES, SIZES, VARIANT, of_lines
from training.interchange.description import Field, Fields, Layers, Need, fields_of, in_turn, theirs
from training.interchange.experts import NEMOTRON
from training.interchange.granite import LIMITS, mamba_rows
from training.interchange.hybrids import LINEAR
from training.interchange.mapping import HEADS, HIDDEN, rows
from training.interchange.rotary import FULL

KIND, TYPES = "nemotron_h", "layers_block_type"
DENSE, SPARSE = "mlp", "moe"
OF_LETTERS = {"M": LINEAR, "*": FULL, "-": DENSE, "E": SPARSE}
NAMES = {"mamba": LINEAR, "attention": FULL}


def kinds_of(fields: Fields) -> list[str]:
    """Return the kind of each layer of a file."""
    letters = [OF_LETTERS.get(letter, letter) for letter in fields.get("hybrid_override_pattern", "ME*-")]
    said: list[Any] = [NAMES.get(kind, kind) for kind in fields.get(TYPES, letters)]
    found = Layers(lambda *_: said, "-").of(fields, len(said), [*OF_LETTERS.values()])
    follows = [kind in (DENSE, SPARSE) for kind in found]
    if not found or any(mlp and before for mlp, before in zip(follows, [True, *follows], strict=False)):
        fields.needs.append("an MLP that follows neither an attention nor a recurrence")
        return [LINEAR]
    return found


class _Alternating:
    """The fields of layers and MLPs; as a `Field`."""

    def read(self, fields: Fields, found: dict[str, Any]) -> None:
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
        found |= {"L": len(mlps), "mlp": in_turn(mlps)}

    def fill(self, state: dict[str, Any], config: Any, lines: Mapping[str, Any]) -> None:
        """Add the fields to a config.json."""
        types, of_layers = [], [config.variant.lines(l) for l in range(config.L)]
        for line in of_layers:
            kind = [] if line.mlp is None else [SPARSE] if isinstance(line.mlp, Experts) else [DENSE]
            types += [LINEAR if isinstance(line.attention, Mamba2) else FULL, *kind]
        state |= {TYPES: types, "num_hidden_layers": len(types)}
        for mlp in {type(line.mlp): line.mlp for line in of_layers if line.mlp}.values():
            own = dataclasses.replace(config, d_mlp=mlp.d_mlp or config.d_mlp)
            state |= {"mlp_hidden_act": theirs(mlp.activation or "gelu"), "mlp_bias": mlp.biases}
            if isinstance(mlp, Experts):
                NEMOTRON.fill(state, own, lines)
            else:
                state["intermediate_size"] = own.d_mlp


def _read(fields: Fields, found: dict[str, Any], names: Any, kind: str) -> None:
    if fields.get("time_step_limit") not in LIMITS:
        fields.needs.append(f"limits of Δ (time_step_limit = {fields.get('time_step_limit')!r})")


def _by_number(fields: Fields, L: int) -> list[str]:
    return [kind for kind in kinds_of(fields) if kind in (LINEAR, FULL)]


_LAYER, _MIXER, _MLP = "layers.#", "layers.#.mixer", "layers.#+.mixer"
_TENSORS = {
    "embeddings.weight": "W_e",
    f"{_LAYER}.norm.*": "layers.norm1.*",
    **rows(_MIXER, "q_proj k_proj v_proj o_proj", "layers.attention", HEADS),
    **mamba_rows(_MIXER),
    f"{_LAYER}+.norm.*": "layers.norm2.*",
    **rows(_MLP, "up_proj down_proj", "layers.mlp", HIDDEN),
    f"{_MLP}.gate.weight": "layers.mlp.W_r",
    f"{_MLP}.gate.e_score_correction_bias": "layers.mlp.b_choice",
    **rows(f"{_MLP}.experts.@", "up_proj down_proj", "layers.mlp.experts", HIDDEN),
    **rows(f"{_MLP}.shared_experts", "up_proj down_proj", "layers.mlp.shared", HIDDEN),
    "norm_f.*": "norm.*",
}
_OF_MAMBA = " ".join(f"{LINEAR}.{size}" for size in ("n", "n_keys", "d_key", "d_value", "width", "delta_min"))
_NORM = RMSNorm(epsilon=1e-5)
KINDS = {
    KIND: of_lines(
        f"{KIND} NemotronH",
        _Alternating(),
        *fields_of(
            _OF_MAMBA,
            "mamba_num_heads n_groups ssm_state_size mamba_head_dim conv_kernel time_step_min",
            *(128, 8, 128, 64, 4, 0.001),
        ),
        Need("use_conv_bias", True, "a convolution without biases"),
        Need("use_bias", False, "biases of the projections of a recurrence"),
        Need("mamba_hidden_act", "silu", "another nonlinearity"),
        Need("moe_latent_size", None, "experts of a latent"),
        Need("sliding_window", None, "windows"),
        positions=(),
        activation=(),
        sizes=[field for field in fields_of(SIZES, OF_SIZES) if field.ours not in ("L", "d_mlp")],
        heads=[Field("num_key_value_heads", "H_kv", 8), Field("head_dim|attention_head_dim", "d_attn d_mid", 128)],
        variant=VARIANT.but(norm=_NORM),
        epsilon=1e-5,
        of_epsilon="layer_norm_epsilon",
        same_epsilon=f"{LINEAR}.norm",
        tensors={f"backbone.{name}|model.{name}": ours for name, ours in _TENSORS.items()},
        read=_read,
        in_turn=True,
        lines={LINEAR: Mamba2(n=128, n_keys=8, d_key=128, d_value=64, norm=_NORM), FULL: LINE},
        layers=Layers(_by_number, "-"),
        ignored=("mtp.*",),
    )
}
"""By model_type."""
