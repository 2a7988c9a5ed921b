"""RecurrentGemma (Griffin), by changed lines: RG-LRUs in two of three layers, attention in a window in the third."""

from collections.abc import Sequence
from typing import Any

from algorithms.lines import MLP, RGLRU, Attention, Embedding, RMSNorm, Rotary
from algorithms.model.variants import PAPER
from training.interchange.decoders import OF_SIZES, SIZES, heads_fields, in_turn, read_scaling, rotary_fields, rotary_of
from training.interchange.description import Architecture, Field, Fields, Model, theirs, unlike, written
from training.interchange.errors import InterchangeError
from training.interchange.experts import OURS
from training.interchange.mapping import HEADS, rows

KIND = "recurrent_gemma"
RECURRENT, ATTENTION = "recurrent", "attention"


def _read(fields: Fields, found: dict[str, Any], names: Sequence[Any], kind: str) -> None:
    norm, said, d_e, H = RMSNorm(epsilon=found["norm.epsilon"], offset=1.0), rotary_of(fields), found["d_e"], found["H"]
    share = said.number("partial_rotary_factor", 0.5)
    rows, units = fields.integer("lru_width", d_e), found["d_mlp"]
    if rows % H or units % 2:
        wrong = f"lru_width = {rows}, which {H} heads do not divide" if rows % H else f"intermediate_size = {units}"
        raise InterchangeError(f"{fields.path}: {wrong}: expected a multiple of {H if rows % H else 2}")
    of_kinds: dict[str, Any] = {
        RECURRENT: RGLRU(n=H, d=rows // H, width=fields.integer("conv1d_width", 4, least=2)),
        ATTENTION: Attention(
            positions=Rotary(
                base=said.number("rope_theta", 10_000.0), share=share, scaling=read_scaling(said, found["l_max"])
            ),
            window=fields.integer("attention_window_size", 2048),
            biases=True if fields.flag("attention_bias", False) else "out",
        ),
    }
    kinds = fields.get("block_types", [RECURRENT, RECURRENT, ATTENTION])
    if not isinstance(kinds, list) or not kinds or not set(kinds) <= of_kinds.keys():
        raise InterchangeError(
            f"{fields.path}: block_types: expected a list of {RECURRENT} and {ATTENTION}, got {str(kinds)[:60]}"
        )
    activation = fields.activation("hidden_activation", "gelu_pytorch_tanh")
    if activation != "gelu_tanh":
        fields.needs.append(f"another nonlinearity of the gates (hidden_activation = {activation})")
    found["mlp"] = MLP(activation="gelu_tanh", gated=True)
    found |= {"d_mid": found["d_attn"], "d_mlp": units // 2, "norm": norm}
    found["attention"] = in_turn([of_kinds[kinds[l % len(kinds)]] for l in range(found["L"])])


def _write(model: Model, state: dict[str, Any], kind: str) -> list[str]:
    c, v = model.config, model.config.variant
    lines = [v.attention_of(l) for l in range(c.L)]
    units = [line for line in lines if isinstance(line, RGLRU)]
    attention = next((line for line in lines if isinstance(line, Attention)), None)
    if not units or attention is None or v.mlp is None:
        state.clear()
        return ["layers other than RG-LRUs and attention, with MLPs"]
    state["block_types"] = [RECURRENT if isinstance(line, RGLRU) else ATTENTION for line in lines]
    state |= {"intermediate_size": 2 * c.d_mlp, "hidden_activation": "gelu_pytorch_tanh"}
    state |= {"lru_width": units[0].n * units[0].d, "conv1d_width": units[0].width}
    state |= {"attention_window_size": attention.window, "attention_bias": attention.biases is True}
    share = getattr(attention.positions, "share", 1.0)
    state["rope_parameters"] = {**rotary_fields(attention.positions), "partial_rotary_factor": share}
    lacks = unlike(theirs(v.mlp.activation or "gelu"), "gelu_new", "another nonlinearity than GELU by tanh")
    lacks += unlike(units[0].n, c.H, f"{units[0].n} groups of an RG-LRU, but {c.H} heads")
    return lacks + unlike(attention.window is None, False, "attention without a window")


_LAYER, _ATTENTION = "model.layers.#", "layers.attention"
_BLOCK = f"{_LAYER}.temporal_block"
KINDS = {
    KIND: Architecture(
        "d",
        KIND,
        PAPER.but(embedding=Embedding(positions=None, scaled="bfloat16")),
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
            *written(rope_parameters=None, attention_dropout=0.0, pad_token_id=None),
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
        mixers=(RGLRU,),
    )
}
"""By model_type."""
