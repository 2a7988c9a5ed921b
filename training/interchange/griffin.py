"""RecurrentGemma (Griffin), by changed lines: RG-LRUs in two of three layers, attention in a window in the third."""

from collections.abc import Sequence
from typing import Any

from algorithms.lines import MLP, RGLRU, Attention, Embedding, RMSNorm
from algorithms.model.variants import PAPER
from training.interchange.decoders import OF_SIZES, SIZES, heads_fields
from training.interchange.description import Architecture, Field, Fields, Layers, Model, theirs, unlike, written
from training.interchange.errors import InterchangeError
from training.interchange.experts import OURS
from training.interchange.mapping import HEADS, rows
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
    attention = next((line for line in v.attentions if isinstance(line, Attention)), None)
    if attention is None or v.mlp is None:
        state.clear()
        return ["layers other than RG-LRUs and attention, with MLPs"]
    state |= {"intermediate_size": 2 * c.d_mlp, "lru_width": unit.n * unit.d}
    lacks = unlike(theirs(v.mlp.activation or "gelu"), "gelu_new", "another nonlinearity than GELU by tanh")
    lacks += unlike(unit.n, c.H, f"{unit.n} groups of an RG-LRU, but {c.H} heads")
    return lacks + unlike(attention.window is None, False, "attention without a window")


_LAYER, _ATTENTION, _NORM = "model.layers.#", "layers.attention", RMSNorm(epsilon=1e-6, offset=1.0)
_BLOCK = f"{_LAYER}.temporal_block"
KINDS = {
    KIND: Architecture(
        "d",
        KIND,
        PAPER.but(
            embedding=Embedding(positions=None, scaled="bfloat16"),
            norm=_NORM,
            mlp=MLP(activation="gelu_tanh", gated=True),
        ),
        [
            *written(model_type=KIND, architectures=["RecurrentGemmaForCausalLM"]),
            *(
                Field(name, ours, 8192 if ours == "l_max" else None)  # which official files do not say
                for name, ours in zip(OF_SIZES.split(), SIZES.split(), strict=True)
            ),
            *heads_fields(),
            Field("rms_norm_eps", "norm.epsilon", 1e-6),
            Field("logits_soft_cap", "unembedding.cap", 30.0),
            Field("tie_word_embeddings", "unembedding.tied", True),
            Positions(share=0.5),
            Field("attention_window_size", f"{ATTENTION}.window", 2048),
            Field("attention_bias", f"{ATTENTION}.biases", False, ("out", True)),
            Field("conv1d_width", f"{RECURRENT}.width", 4),
            *written(hidden_activation="gelu_pytorch_tanh", attention_dropout=0.0, pad_token_id=None),
        ],
        {
            "model.embed_tokens.weight": "W_e",
            **rows(_LAYER, "temporal_pre_norm channel_pre_norm", "layers", "norm1.* norm2.*"),
            **rows(_BLOCK, "q_proj k_proj v_proj o_proj", _ATTENTION, HEADS),
            **rows(_BLOCK, "linear_x linear_y linear_out", _ATTENTION, "*_x *_y *_out"),
            f"{_BLOCK}.conv_1d.weight": f"<{_ATTENTION}.C>",
            f"{_BLOCK}.conv_1d.bias": f"{_ATTENTION}.b_c",
            **{
                f"{_BLOCK}.rg_lru.{gate}_gate_{kind}": f"^{_ATTENTION}.{letter}_{ours}"
                for gate, ours in (("input", "i"), ("recurrent", "r"))
                for kind, letter in (("weight", "W"), ("bias", "b"))
            },
            f"{_BLOCK}.rg_lru.recurrent_param": f"{_ATTENTION}.a",
            **rows(f"{_LAYER}.mlp_block", "gate_proj up_proj down_proj", "layers.mlp", OURS),
            "model.final_norm.*": "norm.*",
            "lm_head.weight": "W_u",
        },
        _read,
        _write,
        prefix="model.",
        lines={RECURRENT: RGLRU(n=1, d=1), ATTENTION: Attention(window=2048)},
        layers=Layers(lambda fields, L: [RECURRENT, RECURRENT, ATTENTION], "block_types", cyclic=True),
    )
}
"""By model_type."""
