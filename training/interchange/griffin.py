"""RecurrentGemma (Griffin), by changed lines: RG-LRUs in two of three layers, attention in a window in the third."""

from collections.abc import Sequence
from typing import Any

from algorithms.lines import MLP, RGLRU, Attention, Embedding, RMSNorm
from training.interchange.decoders import OF_SIZES, SIZES, VARIANT, Norms, of_lines
from training.interchange.description import Field, Fields, Layers, Model, theirs, unlike, written
from training.interchange.errors import InterchangeError
from training.interchange.mapping import rows
from training.interchange.rotary import Positions

KIND = "recurrent_gemma"
RECURRENT, ATTENTION = "recurrent", "attention"


def _read(fields: Fields, found: dict[str, Any], names: Sequence[Any], kind: str) -> None:
    width, H, units = fields.integer("lru_width", found["d_e"]), found["H"], found["d_mlp"]
    if width % H or units % 2:
        wrong = f"lru_width = {width}, which {H} heads do not divide" if width % H else f"intermediate_size = {units}"
        raise InterchangeError(f"{fields.path}: {wrong}: expected a multiple of {H if width % H else 2}")
    found |= {"d_mlp": units // 2, f"{RECURRENT}.n": H, f"{RECURRENT}.d": width // H}
    activation = fields.activation("hidden_activation", "gelu_pytorch_tanh")
    if activation != "gelu_tanh":
        fields.needs.append(f"another nonlinearity of the gates (hidden_activation = {activation})")


def _write(model: Model, state: dict[str, Any], kind: str) -> list[str]:
    c, v = model.config, model.config.variant
    unit = next(line for line in v.attentions if isinstance(line, RGLRU))
    state |= {"intermediate_size": 2 * c.d_mlp, "lru_width": unit.n * unit.d}
    lacks = unlike(theirs(v.mlps[0].activation or "gelu"), "gelu_new", "another nonlinearity than GELU by tanh")
    lacks += unlike(unit.n, c.H, f"{unit.n} groups of an RG-LRU, but {c.H} heads")
    windows = [line.window for line in v.attentions if isinstance(line, Attention)]
    return lacks + unlike(None in windows, False, "attention without a window")


_BLOCK, _ATTENTION, _NORM = "model.layers.#.temporal_block", "layers.attention", RMSNorm(epsilon=1e-6, offset=1.0)
KINDS = {
    KIND: of_lines(
        f"{KIND} RecurrentGemma",
        Field("logits_soft_cap", "unembedding.cap", 30.0),
        Field("attention_window_size", f"{ATTENTION}.window", 2048),
        Field("conv1d_width", f"{RECURRENT}.width", 4),
        *written(hidden_activation="gelu_pytorch_tanh"),
        positions=[Positions(share=0.5)],
        activation=(),
        biases=[Field("attention_bias", f"{ATTENTION}.biases", False, ("out", True))],
        variant=VARIANT.but(
            embedding=Embedding(positions=None, scaled="bfloat16"),
            norm=_NORM,
            mlp=MLP(activation="gelu_tanh", gated=True),
        ),
        sizes=[
            Field(name, ours, 8192 if ours == "l_max" else None)  # which official files do not say
            for name, ours in zip(OF_SIZES.split(), SIZES.split(), strict=True)
        ],
        tied=True,
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
        read=_read,
        write=_write,
        lines={RECURRENT: RGLRU(n=1, d=1), ATTENTION: Attention(window=2048)},
        layers=Layers(lambda fields, L: [RECURRENT, RECURRENT, ATTENTION], "block_types", cyclic=True),
    )
}
"""By model_type."""
