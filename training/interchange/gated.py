"""RecurrentGemma (Griffin), mostly of RG-LRUs, and LFM 2, mostly of short convolutions, by changed lines."""

from collections.abc import Sequence
from typing import Any

from algorithms.lines import RGLRU, Attention, ShortConvolution
from training.interchange import description
from training.interchange.decoders import OF_SIZES, SIZES, WITHOUT_MLP, Norms, of_lines
from training.interchange.description import Architecture, Field, Fields, Layers, Model, fields_of, written
from training.interchange.errors import InterchangeError
from training.interchange.experts import OURS, First
from training.interchange.mapping import rows
from training.interchange.rotary import FULL, Positions

RECURRENT, ATTENTION = "recurrent", "attention"


def _read_gemma(fields: Fields, found: dict[str, Any], names: Sequence[Any], kind: str) -> None:
    width, H, units = fields.integer("lru_width", found["d_e"]), found["H"], found["d_mlp"]
    if width % H or units % 2:
        wrong = f"lru_width = {width}, which {H} heads do not divide" if width % H else f"intermediate_size = {units}"
        raise InterchangeError(f"{fields.path}: {wrong}: expected a multiple of {H if width % H else 2}")
    found |= {"d_mlp": units // 2, f"{RECURRENT}.n": H, f"{RECURRENT}.d": width // H}
    activation = fields.activation("hidden_activation", "gelu_pytorch_tanh")
    if activation != "gelu_tanh":
        fields.needs.append(f"another nonlinearity of the gates (hidden_activation = {activation})")


def _write_gemma(model: Model, state: dict[str, Any], kind: str) -> list[str]:
    c, v = model.config, model.config.variant
    unit = next(line for line in v.attentions if isinstance(line, RGLRU))
    state |= {"intermediate_size": 2 * c.d_mlp, "lru_width": unit.n * unit.d}
    lacks = description.unlike(
        description.theirs(v.mlps[0].activation or "gelu"), "gelu_new", "another nonlinearity than GELU by tanh"
    )
    lacks += description.unlike(unit.n, c.H, f"{unit.n} groups of an RG-LRU, but {c.H} heads")
    windows = [line.window for line in v.attentions if isinstance(line, Attention)]
    return lacks + description.unlike(None in windows, False, "attention without a window")


CONVOLUTION = "conv"


def _read_lfm(fields: Fields, found: dict[str, Any], names: Sequence[Any], kind: str) -> None:
    """Take as many hidden units as a gated MLP with the parameters of one without a gate has, if a field says so."""
    if kind != "lfm2":
        return
    units = fields.integer("block_ff_dim", 12288) if fields.has("block_ff_dim") else found["d_mlp"]
    if fields.flag("block_auto_adjust_ff_dim", True):
        multiple = fields.integer("block_multiple_of", 256)
        units = int(fields.number("block_ffn_dim_multiplier", 1.0) * int(2 * units / 3))
        units = -(-units // multiple) * multiple
    found["d_mlp"] = units


def _write_lfm(model: Model, state: dict[str, Any], kind: str) -> list[str]:
    lines = (line for line in model.config.variant.attentions if isinstance(line, ShortConvolution))
    return description.unlike(next(lines).d, model.config.d_e, "convolutions of another number of rows than d_e")


def _lfm(names: str, *fields: Any) -> Architecture:
    layer, ours = "model.layers.#", "layers.attention"
    return of_lines(
        names,
        Field("-", f"{CONVOLUTION}.d", lambda found: found["d_e"]),
        *(*fields, *fields_of(f"{CONVOLUTION}.width {CONVOLUTION}.biases", "conv_L_cache conv_bias")),
        positions=[Positions(base=1_000_000.0)],
        activation=(),
        biases=(),
        sizes=WITHOUT_MLP,
        H_kv=8,
        of_epsilon="norm_eps",
        kinds=(CONVOLUTION, FULL),
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
        read=_read_lfm,
        write=_write_lfm,
        layers=Layers(
            lambda fields, L: [(CONVOLUTION, FULL)[l in fields.items("full_attn_idxs", range(L))] for l in range(L)]
        ),
    )


_BLOCK, _ATTENTION = "model.layers.#.temporal_block", "layers.attention"
KINDS = {
    "recurrent_gemma": of_lines(
        "recurrent_gemma RecurrentGemma RECURRENT_GEMMA",
        *fields_of(
            f"unembedding.cap {ATTENTION}.window {RECURRENT}.width",
            "logits_soft_cap attention_window_size conv1d_width",
        ),
        *written(hidden_activation="gelu_pytorch_tanh"),
        positions=[Positions(share=0.5)],
        activation=(),
        biases=[Field("attention_bias", f"{ATTENTION}.biases", False, ("out", True))],
        kinds=(RECURRENT, ATTENTION),
        sizes=[
            Field(name, ours, 8192 if ours == "l_max" else None)  # which official files do not say
            for name, ours in zip(OF_SIZES.split(), SIZES.split(), strict=True)
        ],
        norms=Norms("temporal_pre_norm", "channel_pre_norm"),
        modules=("temporal_block", "mlp_block"),
        tensors={
            **rows(_BLOCK, "linear_x linear_y linear_out", _ATTENTION, "*_x *_y *_out"),
            f"{_BLOCK}.conv_1d.weight": f"<{_ATTENTION}.C>",
            f"{_BLOCK}.conv_1d.bias": f"{_ATTENTION}.b_c",
            **{
                f"{_BLOCK}.rg_lru.{gate}_gate_{kind}": f"^{_ATTENTION}.{letter}_{ours}"
                for gate, ours in (("input", "i"), ("recurrent", "r"))
                for kind, letter in (("weight", "W"), ("bias", "b"))
            },
            f"{_BLOCK}.rg_lru.recurrent_param": f"{_ATTENTION}.a",
            "model.final_norm.*": "norm.*",
        },
        read=_read_gemma,
        write=_write_gemma,
        layers=Layers(lambda fields, L: [RECURRENT, RECURRENT, ATTENTION], "block_types", cyclic=True),
    ),
    "lfm2": _lfm(
        "lfm2 Lfm2 LFM2", *written(block_auto_adjust_ff_dim=False), Field("intermediate_size", "d_mlp", 12288)
    ),
    "lfm2_moe": _lfm("lfm2_moe Lfm2Moe LFM2_MOE", First(2, 7168, "num_dense_layers")),
}
"""By model_type."""
