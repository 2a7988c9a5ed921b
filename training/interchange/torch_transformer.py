"""Algorithm 8 as `torch.nn.Transformer` has it, with embeddings and an unembedding around it.

PyTorch stores no description of a model, so config.json is this library's, with torch's names of the arguments::

    {"model_type": "torch.nn.Transformer", "d_model": 512, "nhead": 8, "num_encoder_layers": 6, "num_decoder_layers": 6,
     "dim_feedforward": 2048, "activation": "relu", "layer_norm_eps": 1e-5, "norm_first": false,
     "src_vocab_size": 100, "tgt_vocab_size": 90, "max_len": 64, "positions": "sinusoidal", "scale_embedding": true,
     "tie_word_embeddings": false, "generator_bias": true,
     "names": {"transformer": "transformer", "src_embedding": "src_embedding", "tgt_embedding": "tgt_embedding",
               "generator": "generator", "positions": "positions"}}

``names`` are those of the modules in the file; one embedding for both has one name. Positions are sinusoids
(sines and cosines by turns), or a table that is learned, which is called ``names["positions"]`` then.
"""

from collections.abc import Sequence
from typing import Any

from algorithms import PAPER, EDTransformerConfig
from algorithms.lines import MLP, Embedding, LayerNorm, Unembedding
from training.interchange.description import Architecture, Fields, Model, differences, plain_heads, theirs
from training.interchange.mapping import Entry, heads, linear, norm, table

NAME = "torch.nn.Transformer"
TORCH = PAPER.but(norm=LayerNorm(epsilon=1e-5), mlp=MLP(activation="relu"), final_norm=True)
"""`torch.nn.Transformer`: a norm after the last layer of both stacks, and before or after each sublayer."""

NAMES = {name: name for name in ("transformer", "src_embedding", "tgt_embedding", "generator", "positions")}


def _read_config(fields: Fields, names: Sequence[str]) -> Model:
    called = NAMES | fields.table("names")
    positions = fields.get("positions", "sinusoidal")
    if positions not in ("sinusoidal", "learned"):
        fields.needs.append(f"{positions} positions")
    embedding = Embedding(
        positions="learned" if positions == "learned" else "sinusoidal", scaled=fields.flag("scale_embedding", True)
    )
    tied, bias = fields.flag("tie_word_embeddings", False), fields.flag("generator_bias", True)
    variant = TORCH.but(
        embedding=embedding,
        norm=LayerNorm(epsilon=fields.number("layer_norm_eps", 1e-5)),
        mlp=MLP(activation=fields.activation("activation", "relu")),
        order="norm_first" if fields.flag("norm_first", False) else None,
        unembedding=Unembedding(tied=tied, bias=bias),
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
    positions = v.embedding.positions if v.embedding.positions in ("learned", "sinusoidal") else "sinusoidal"
    said = TORCH.but(
        embedding=Embedding(positions=positions, scaled=v.embedding.scaled),
        norm=LayerNorm(epsilon=v.norm.epsilon),
        mlp=MLP(activation=v.mlp.activation),
        order=v.order if v.order in (None, "norm_first", "norm_last") else None,
        unembedding=v.unembedding.but(cap=None, scaled=False),
        dropout=v.dropout,
    )
    lacks = differences(v, said) + plain_heads(c)
    names = NAMES if c.N_V_z is not None else NAMES | {"src_embedding": NAMES["tgt_embedding"]}
    state = {
        "model_type": NAME,
        "d_model": c.d_e,
        "nhead": c.H,
        "num_encoder_layers": c.L_enc,
        "num_decoder_layers": c.L_dec,
        "dim_feedforward": c.d_mlp,
        "activation": theirs(v.mlp.activation or "relu"),
        "layer_norm_eps": v.norm.epsilon,
        "norm_first": v.order == "norm_first",
        "src_vocab_size": c.N_V_z or c.N_V,
        "tgt_vocab_size": c.N_V,
        "max_len": c.l_max,
        "positions": v.embedding.positions,
        "scale_embedding": v.embedding.scaled,
        "tie_word_embeddings": c.tied,
        "generator_bias": v.unembedding.bias,
        "names": names,
    }
    return state, lacks


def _entries(model: Model, state: dict[str, Any]) -> list[Entry]:
    c, v = model.config, model.config.variant
    called = NAMES | state.get("names", {})
    found = [
        table(f"{called['tgt_embedding']}.weight", "W_e", [f"{called['generator']}.weight"] if c.tied else []),
        *([] if c.N_V_z is None else [table(f"{called['src_embedding']}.weight", "context.W_e")]),
        *([table(f"{called['positions']}.weight", "W_p")] if v.embedding.positions == "learned" else []),
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
    return [*found, Entry(f"{called['generator']}.bias", ("b_u",))] if v.unembedding.bias else found


ARCHITECTURE = Architecture(_read_config, _write_config, _entries, ignored=("*.pe",))  # sinusoids, which are computed
