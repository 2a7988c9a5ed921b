"""Algorithm 8 as in `torch.nn.Transformer`, with embeddings and an unembedding around it.

PyTorch stores no description of a model, so config.json is defined here, with torch's argument names::

    {"model_type": "torch.nn.Transformer", "d_model": 512, "nhead": 8, "num_encoder_layers": 6, "num_decoder_layers": 6,
     "dim_feedforward": 2048, "activation": "relu", "layer_norm_eps": 1e-5, "norm_first": false,
     "src_vocab_size": 100, "tgt_vocab_size": 90, "max_len": 64, "positions": "sinusoidal", "scale_embedding": true,
     "tie_word_embeddings": false, "generator_bias": true,
     "names": {"transformer": "transformer", "src_embedding": "src_embedding", "tgt_embedding": "tgt_embedding",
               "generator": "generator", "positions": "positions"}}

``names`` are those of the modules in the file; if source and target share an embedding, both have its name. Positions
are sinusoids (sines and cosines alternate) or a learned table, named ``names["positions"]``.
"""

from collections.abc import Sequence
from typing import Any

from algorithms import PAPER, EDTransformerConfig
from algorithms.lines import MLP, Embedding, LayerNorm, Unembedding
from training.interchange.description import Architecture, Fields, Model, size_fields, theirs, unexpressed
from training.interchange.mapping import Entry, heads, linear, mlp_maps, norm, table

NAME = "torch.nn.Transformer"
TORCH = PAPER.but(norm=LayerNorm(epsilon=1e-5), mlp=MLP(activation="relu"), final_norm=True)
"""The lines of `torch.nn.Transformer`, with a norm after the last layer of both stacks; norm_first sets their order."""

SIZES = {
    "N_V": ("tgt_vocab_size",),
    "l_max": ("max_len", 5000),
    "L_enc": ("num_encoder_layers", 6),
    "L_dec": ("num_decoder_layers", 6),
    "H": ("nhead", 8),
    "d_e": ("d_model", 512),
    "d_mlp": ("dim_feedforward", 2048),
}
"""Our name → the field's name and default."""
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
    sizes: dict[str, Any] = fields.sizes(SIZES)
    shared = called["src_embedding"] == called["tgt_embedding"]
    N_V_z = None if shared else fields.integer("src_vocab_size", sizes["N_V"])
    return Model("ed", EDTransformerConfig(**sizes, N_V_z=N_V_z, variant=variant))


def _write_config(model: Model) -> tuple[dict[str, Any], list[str]]:
    c, v = model.config, model.config.variant
    positions = v.embedding.positions if v.embedding.positions in ("learned", "sinusoidal") else "sinusoidal"
    said = TORCH.but(
        embedding=Embedding(positions=positions, scaled=v.embedding.scaled),
        norm=LayerNorm(epsilon=v.norm.epsilon),
        mlp=MLP(activation=v.mlp.activation),
        order=v.order if v.order in (None, "norm_first", "norm_last") else None,
        unembedding=v.unembedding.but(cap=None, scaled=False),
    )
    lacks = unexpressed(c, said)
    names = NAMES if c.N_V_z is not None else NAMES | {"src_embedding": NAMES["tgt_embedding"]}
    state = {
        "model_type": NAME,
        **size_fields(c, SIZES),
        "activation": theirs(v.mlp.activation or "relu"),
        "layer_norm_eps": v.norm.epsilon,
        "norm_first": v.order == "norm_first",
        "src_vocab_size": c.N_V_z or c.N_V,
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
    of_encoder = [("self_attn", "attention", "norm1"), (None, "mlp", "norm2")]
    of_decoder = [
        ("self_attn", "self_attention", "norm3"),
        ("multihead_attn", "cross_attention", "norm4"),
        (None, "mlp", "norm5"),
    ]
    for part, L, steps in (("encoder", c.L_enc, of_encoder), ("decoder", c.L_dec, of_decoder)):
        for l in range(L):
            name = f"{called['transformer']}.{part}.layers.{l}"
            for i, (attention, step, its_norm) in enumerate(steps, start=1):
                leaf = f"{part}.{step}"
                if attention is None:
                    found += mlp_maps(f"{name}.linear1", f"{name}.linear2", leaf, l)
                else:
                    W, b = heads(leaf)
                    found.append(Entry(f"{name}.{attention}.in_proj_weight", W, l))
                    found.append(Entry(f"{name}.{attention}.in_proj_bias", b, l))
                    found += linear(f"{name}.{attention}.out_proj", f"{leaf}.W_o", f"{leaf}.b_o", l)
                found += norm(f"{name}.norm{i}", f"{part}.{its_norm}", l)
        found += norm(f"{called['transformer']}.{part}.norm", f"{part}_norm")
    if not c.tied:
        found.append(Entry(f"{called['generator']}.weight", ("W_u",)))
    return [*found, Entry(f"{called['generator']}.bias", ("b_u",))] if v.unembedding.bias else found


ARCHITECTURE = Architecture(_read_config, _write_config, _entries, ignored=("*.pe",))  # sinusoids, which we compute
