"""Algorithm 8 as `torch.nn.Transformer` has it, with embeddings and an unembedding around it.

PyTorch stores no description of a model, so config.json is this library's, with torch's names of the arguments::

    {"model_type": "torch.nn.Transformer", "d_model": 512, "nhead": 8, "num_encoder_layers": 6, "num_decoder_layers": 6,
     "dim_feedforward": 2048, "activation": "relu", "layer_norm_eps": 1e-5, "norm_first": false,
     "src_vocab_size": 100, "tgt_vocab_size": 90, "max_len": 64, "positions": "sinusoidal", "scale_embedding": true,
     "tie_word_embeddings": false, "generator_bias": true,
     "names": {"transformer": "transformer", "src_embedding": "src_embedding", "tgt_embedding": "tgt_embedding",
               "generator": "generator", "positions": "positions"}}

``names`` says what the modules are called in the file; one embedding for both has one name. Positions are sinusoids
(sines and cosines by turns), or a table that is learned, which is called ``names["positions"]`` then.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from algorithms import EDTransformerConfig, Variant
from training.interchange.description import Architecture, Fields, Model, theirs, unlike
from training.interchange.mapping import Entry, heads, linear, norm, table

NAME = "torch.nn.Transformer"
TORCH = Variant(name="TORCH", epsilon=1e-5, activation="relu", final_norm=True)
"""`torch.nn.Transformer`: a norm after the last layer of the encoder and of the decoder, before or behind each step."""

NAMES = {name: name for name in ("transformer", "src_embedding", "tgt_embedding", "generator", "positions")}


def _read_config(fields: Fields, names: Sequence[str]) -> Model:
    called = NAMES | fields.table("names")
    positions = fields.get("positions", "sinusoidal")
    if positions not in ("sinusoidal", "learned"):
        fields.needs.append(f"{positions} positions")
    variant = dataclasses.replace(
        TORCH,
        epsilon=fields.number("layer_norm_eps", 1e-5),
        activation=fields.activation("activation", "relu"),
        positions="learned" if positions == "learned" else "sinusoidal",
        scale_embedding=fields.flag("scale_embedding", True),
        norm_first=fields.flag("norm_first", False),
        tied=fields.flag("tie_word_embeddings", False),
        unembedding_bias=fields.flag("generator_bias", True),
    )
    N_V = fields.integer("tgt_vocab_size")
    shared = called["src_embedding"] == called["tgt_embedding"]
    config = EDTransformerConfig(
        N_V=N_V,
        N_V_z=None if shared else fields.integer("src_vocab_size", N_V),
        l_max=fields.integer("max_len", 5000),
        L_enc=fields.integer("num_encoder_layers", 6),
        L_dec=fields.integer("num_decoder_layers", 6),
        H=fields.integer("nhead", 8),
        d_e=fields.integer("d_model", 512),
        d_mlp=fields.integer("dim_feedforward", 2048),
        variant=variant,
    )
    return Model("ed", config)


def _write_config(model: Model) -> tuple[dict[str, Any], list[str]]:
    c, v = model.config, model.config.variant
    lacks = unlike(v.norm, "layer_norm", "RMSnorm") + unlike(v.final_norm, True, "last layer without a norm")
    lacks += unlike(v.normalize_embedding, False, "norm of embeddings")
    lacks += unlike(v.first_position, 0, f"positions from {v.first_position} on")
    lacks += unlike(v.context_positions, False, "positions of the context's own")
    lacks += [] if v.positions in ("learned", "sinusoidal") else [f"{v.positions} positions"]
    lacks += unlike((c.d_attn * c.H, c.d_mid * c.H), (c.d_e, c.d_e), "heads of another size than d_e/H")
    names = NAMES if c.N_V_z is not None else NAMES | {"src_embedding": NAMES["tgt_embedding"]}
    state = {
        "model_type": NAME,
        "d_model": c.d_e,
        "nhead": c.H,
        "num_encoder_layers": c.L_enc,
        "num_decoder_layers": c.L_dec,
        "dim_feedforward": c.d_mlp,
        "activation": theirs(v.activation or "relu"),
        "layer_norm_eps": v.epsilon,
        "norm_first": v.norm_first,
        "src_vocab_size": c.N_V_z or c.N_V,
        "tgt_vocab_size": c.N_V,
        "max_len": c.l_max,
        "positions": v.positions,
        "scale_embedding": v.scale_embedding,
        "tie_word_embeddings": c.tied,
        "generator_bias": v.unembedding_bias,
        "names": names,
    }
    return state, lacks


def _entries(model: Model, state: dict[str, Any]) -> list[Entry]:
    c, v = model.config, model.config.variant
    called = NAMES | state.get("names", {})
    found = [
        table(f"{called['tgt_embedding']}.weight", "W_e", [f"{called['generator']}.weight"] if c.tied else []),
        *([] if c.N_V_z is None else [table(f"{called['src_embedding']}.weight", "context.W_e")]),
        *([table(f"{called['positions']}.weight", "W_p")] if v.positions == "learned" else []),
    ]
    for part, ours, layers in (("encoder", "encoder", c.L_enc), ("decoder", "decoder", c.L_dec)):
        steps = (
            [("self_attn", "attention", "norm1"), (None, "mlp", "norm2")]
            if part == "encoder"
            else [
                ("self_attn", "self_attention", "norm3"),
                ("multihead_attn", "cross_attention", "norm4"),
                (None, "mlp", "norm5"),
            ]
        )
        for l in range(layers):
            name = f"{called['transformer']}.{part}.layers.{l}"
            for i, (attention, step, its_norm) in enumerate(steps, start=1):
                leaf = f"{ours}.{step}"
                if attention is None:
                    found += linear(f"{name}.linear1", f"{leaf}.W_mlp1", f"{leaf}.b_mlp1", l)
                    found += linear(f"{name}.linear2", f"{leaf}.W_mlp2", f"{leaf}.b_mlp2", l)
                else:
                    W, b = heads(leaf)
                    found.append(Entry(f"{name}.{attention}.in_proj_weight", W, l))
                    found.append(Entry(f"{name}.{attention}.in_proj_bias", b, l))
                    found += linear(f"{name}.{attention}.out_proj", f"{leaf}.W_o", f"{leaf}.b_o", l)
                found += norm(f"{name}.norm{i}", f"{ours}.{its_norm}", l)
        found += norm(f"{called['transformer']}.{part}.norm", f"{part}_norm")
    if not c.tied:
        found.append(Entry(f"{called['generator']}.weight", ("W_u",)))
    return [*found, Entry(f"{called['generator']}.bias", ("b_u",))] if v.unembedding_bias else found


ARCHITECTURE = Architecture(_read_config, _write_config, _entries, ignored=("*.pe",))  # sinusoids, which are computed
