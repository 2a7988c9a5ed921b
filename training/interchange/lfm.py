"""LFM 2, also with experts, by changed lines: short convolutions between two gates in place of most attentions."""

from collections.abc import Mapping
from typing import Any

from algorithms.lines import RMSNorm, ShortConvolution
from training.interchange.decoders import LINE, VARIANT, WITHOUT_MLP, Norms, of_lines
from training.interchange.description import Architecture, Fields, Layers, Model, fields_of, numbered, unlike
from training.interchange.experts import OURS, First
from training.interchange.rotary import FULL, Positions

CONVOLUTION = "conv"
DENSE, MOE = "lfm2", "lfm2_moe"
_NORM = RMSNorm(epsilon=1e-5)


class _Adjusted:
    """The fields of the hidden units of MLPs; as a `Field`."""

    def read(self, fields: Fields, found: dict[str, Any]) -> None:
        """Add their number: that of a gated MLP with as many parameters as one without a gate, if a field says so."""
        units = fields.integer("block_ff_dim" if fields.has("block_ff_dim") else "intermediate_size", 12288)
        if fields.flag("block_auto_adjust_ff_dim", True):
            multiple = fields.integer("block_multiple_of", 256)
            units = int(fields.number("block_ffn_dim_multiplier", 1.0) * int(2 * units / 3))
            units = -(-units // multiple) * multiple
        found["d_mlp"] = units

    def fill(self, state: dict[str, Any], config: Any, lines: Mapping[str, Any]) -> None:
        """Add the fields to a config.json."""
        state |= {"block_auto_adjust_ff_dim": False, "intermediate_size": config.d_mlp}


def _read(fields: Fields, found: dict[str, Any], names: Any, kind: str) -> None:
    found[f"{CONVOLUTION}.d"] = found["d_e"]


def _write(model: Model, state: dict[str, Any], kind: str) -> list[str]:
    lines = (line for line in model.config.variant.attentions if isinstance(line, ShortConvolution))
    return unlike(next(lines).d, model.config.d_e, "convolutions of another number of rows than d_e")


def _architecture(names: str, *fields: Any) -> Architecture:
    layer, ours = "model.layers.#", "layers.attention"
    return of_lines(
        names,
        *(*fields, *fields_of(f"{CONVOLUTION}.width {CONVOLUTION}.biases", "conv_L_cache conv_bias", 3, False)),
        positions=[Positions(base=1_000_000.0)],
        activation=(),
        biases=(),
        variant=VARIANT.but(norm=_NORM),
        sizes=WITHOUT_MLP,
        H_kv=8,
        epsilon=1e-5,
        of_epsilon="norm_eps",
        tied=True,
        norms=Norms("operator_norm", "ffn_norm"),
        modules=("self_attn", "feed_forward"),
        of_heads="q_layernorm k_layernorm",
        mlp=("w1 w3 w2", OURS),
        tensors={
            f"{layer}.self_attn.out_proj.*": f"{ours}.*_o",
            f"{layer}.conv.in_proj.*": f"{ours}.*_i+*_y+*_x",
            f"{layer}.conv.conv.weight": f"<{ours}.C>",
            f"{layer}.conv.conv.bias": f"{ours}.b_c",
            f"{layer}.conv.out_proj.*": f"{ours}.*_out",
            "model.embedding_norm.*": "norm.*",
        },
        read=_read,
        write=_write,
        lines={CONVOLUTION: ShortConvolution(d=2048), FULL: LINE.but(normalize_heads=_NORM)},
        layers=Layers(numbered("full_attn_idxs", (CONVOLUTION, FULL), range)),
    )


KINDS = {
    DENSE: _architecture("lfm2 Lfm2", _Adjusted()),
    MOE: _architecture("lfm2_moe Lfm2Moe", First(2, 7168, "num_dense_layers")),
}
"""By model_type."""
