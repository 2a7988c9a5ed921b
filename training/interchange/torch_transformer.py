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

from algorithms import PAPER
from algorithms.lines import MLP, LayerNorm
from training.interchange.description import Architecture, Field, Fields, Model, fields_of, written
from training.interchange.encoder_decoder import STEPS, layer_rows
from training.interchange.mapping import HIDDEN, Table

NAME = "torch.nn.Transformer"
TORCH = PAPER.but(norm=LayerNorm(epsilon=1e-5), mlp=MLP(activation="relu"), final_norm=True)
"""The lines of `torch.nn.Transformer`, with a norm after the last layer of both stacks; norm_first sets their order."""
NAMES = {name: name for name in ("transformer", "src_embedding", "tgt_embedding", "generator", "positions")}
MODULES, STACKED = ("{2}.in_proj_* {2}.out_proj norm{1}", "linear1 linear2 norm{1}"), "heads.*_q+*_k+*_v *_o"


def _read(fields: Fields, found: dict[str, Any], names: Sequence[str], kind: str) -> None:
    called, positions = NAMES | fields.table("names"), fields.get("positions", "sinusoidal")
    if positions not in ("sinusoidal", "learned"):
        fields.needs.append(f"{positions} positions")
    found["embedding.positions"] = "learned" if positions == "learned" else "sinusoidal"
    shared = called["src_embedding"] == called["tgt_embedding"]
    found["N_V_z"] = None if shared else fields.integer("src_vocab_size", found["N_V"])


def _tensors(model: Model, state: dict[str, Any], kind: str) -> Table:
    called = NAMES | state.get("names", {})
    found = {f"{called['tgt_embedding']}.weight": "W_e"}
    if model.config.N_V_z is not None:
        found[f"{called['src_embedding']}.weight"] = "context.W_e"
    found[f"{called['positions']}.weight"] = "W_p"
    for part in STEPS:
        stack = f"{called['transformer']}.{part}"
        found |= layer_rows(f"{stack}.layers.#", part, MODULES, ("self_attn", "multihead_attn"), (STACKED, HIDDEN))
        found[f"{stack}.norm.*"] = f"{part}_norm.*"
    return {**found, f"{called['generator']}.*": "*_u"}


_ARCHITECTURE = Architecture(
    "ed",
    NAME,
    TORCH,
    [
        *written(model_type=NAME),
        *fields_of(
            "N_V l_max L_enc L_dec H d_e d_mlp",
            "tgt_vocab_size max_len num_encoder_layers num_decoder_layers nhead d_model dim_feedforward",
            *(None, 5000, 6, 6, 8, 512, 2048),
        ),
        Field("activation", "mlp.activation", "relu"),
        Field("layer_norm_eps", "norm.epsilon", 1e-5),
        Field("norm_first", "order", False, (None, "norm_first")),
        *written(src_vocab_size=lambda c: c.N_V_z or c.N_V, positions=lambda c: c.variant.embedding.positions),
        Field("scale_embedding", "embedding.scaled", True),
        Field("tie_word_embeddings", "unembedding.tied", False),
        Field("generator_bias", "unembedding.bias", True),
        *written(names=lambda c: NAMES if c.N_V_z else NAMES | {"src_embedding": NAMES["tgt_embedding"]}),
    ],
    _tensors,
    _read,
    ignored=("*.pe",),  # sinusoids, which we compute
)
KINDS = {NAME: _ARCHITECTURE}
"""By model_type."""
