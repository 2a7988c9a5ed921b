"""Variants for the tests: the named ones at small sizes, a covering array of lines, and both as the oracle has them.

Windows, caps and shares are small enough to matter at the tests' sizes, so that leaving one out is seen.
"""

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

import algorithms
from algorithms import PAPER, DTransformerConfig, DTransformerParams, EDTransformerConfig, ETransformerConfig, Variant
from algorithms.lines import (
    MLP,
    ALiBi,
    Attention,
    Distances,
    Embedding,
    Experts,
    GatedDelta,
    LayerNorm,
    Linear,
    Llama3,
    Mamba2,
    RMSNorm,
    Rotary,
    TransformerXL,
    Unembedding,
)
from tests import cases
from tests.own_lines.differential import DIFFERENTIAL
from tests.own_lines.experts import EXPERTS
from tests.own_lines.latent import LATENT
from tests.own_lines.sinks import SINKS, Sinks
from tests.own_lines.slopes import SLOPES
from training.crosscheck.models import YARN, family_parameters, small
from training.oracle import family

SIZES = {"N_V": 19, "l_max": 17, "L": 3, "H": 6, "d_e": 10, "d_mlp": 13, "d_attn": 4, "d_mid": 5}
X = np.random.default_rng(0).integers(0, 19, (2, 13))
Z, Z_LENGTHS = np.random.default_rng(1).integers(0, 19, (2, 11)), np.array([11, 6])

POSITIONS = {
    "halves": Rotary(base=20.0),
    "neighbors": Rotary(base=20.0, share=0.5, pairs="neighbors"),
    "linear": Rotary(base=20.0, scaling=Linear(factor=3.0)),
    "llama3": Rotary(base=20.0, scaling=Llama3(factor=4.0, low=0.5, high=2.0, l_original=7)),
    "yarn": Rotary(base=20.0, scaling=YARN),
    "distances": Distances(buckets=6, farthest=7),
    "alibi": ALiBi(),
    "transformer_xl": TransformerXL(base=20.0),
}

VALUES: Mapping[str, tuple[Any, ...]] = {
    "norm": (LayerNorm(epsilon=1e-3), RMSNorm(epsilon=1e-3), RMSNorm(epsilon=1e-3, offset=1.0)),
    "embedding": ("learned", "sinusoidal_halves", None),
    "positions": (None, *POSITIONS),
    "order": (None, "norm_last", "side_by_side", "no_norm"),
    "windows": ((None,), (5,), (None, 3)),
    "scale": (None, 0.7),
    "cap": (None, 0.5),
    "clip": (None, 0.6),
    "biases": (True, False, "qkv", "out"),
    "normalize_heads": (False, True),
    "normalize_output": (False, True),
    "mlp": ("gelu", "gated silu", "relu without biases", None),
    "H_kv": (6, 2, 1),
    "scaled": (False, True),
    "tied": (False, True),
    "final": ("norm", "cap", "nothing"),
}
BOTH_WAYS: Mapping[str, tuple[Any, ...]] = VALUES | {"order": (None, "norm_first", "no_norm")}
"""Of an encoder."""
ACROSS = BOTH_WAYS | {"embedding": ("learned", "sinusoidal_halves", None), "positions": (None, "distances", "alibi")}
"""Of an encoder-decoder, whose cross-attention has no positions."""


def covering_array(values: Mapping[str, tuple[Any, ...]]) -> list[dict[str, Any]]:
    """Rows in which every value of each field meets every value of every other field at least once."""
    names, sizes = tuple(values), [len(of_field) for of_field in values.values()]
    A, B = np.array([*itertools.combinations(range(len(names)), 2)]).T
    left = np.zeros((len(A), max(sizes), max(sizes)), bool)  # of two fields, which values have not met
    for of_fields, a, b in zip(left, A, B, strict=True):
        of_fields[: sizes[a], : sizes[b]] = True
    pairs = sorted(((names[A[p]], i), (names[B[p]], j), p) for p, i, j in np.argwhere(left).tolist())
    rng, rows = np.random.default_rng(0), []
    for (a, i), (b, j), p in pairs:
        if left[p, i, j]:
            candidates = np.array([[rng.integers(n) for n in sizes] for _ in range(200)])
            candidates[:, [names.index(a), names.index(b)]] = i, j
            met = np.arange(len(A)), candidates[:, A], candidates[:, B]
            best = candidates[left[met].sum(axis=1).argmax()]
            left[met[0], best[A], best[B]] = False
            rows.append({n: values[n][k] for n, k in zip(names, best, strict=True)})
    return rows


def variant_of(row: Mapping[str, Any]) -> tuple[Variant, int, bool]:
    """The variant of a row, its H_kv and whether it is tied."""
    norm = row["norm"]
    of_heads = RMSNorm(epsilon=norm.epsilon, offset=getattr(norm, "offset", 0.0))
    line = Attention(
        positions=None if row["positions"] is None else POSITIONS[row["positions"]],
        scale=row["scale"],
        cap=row["cap"],
        clip=row["clip"],
        biases=row["biases"],
        normalize_heads=of_heads if row["normalize_heads"] else None,
        normalize_output=norm if row["normalize_output"] else None,
    )
    mlp = {
        "gelu": MLP(),
        "gated silu": MLP(activation="silu", gated=True, biases=False),
        "relu without biases": MLP(activation="relu", biases=False),
        None: None,
    }[row["mlp"]]
    if mlp is not None and row["normalize_output"]:
        mlp = mlp.but(normalize_output=norm)
    variant = PAPER.but(
        embedding=Embedding(positions=row["embedding"], scaled=row["scaled"], normalized=row["scaled"]),
        norm=norm,
        attention=tuple(line.but(window=window) for window in row["windows"]),
        mlp=mlp,
        order=row["order"],
        final_norm=None if row["final"] == "norm" else False,
        unembedding=Unembedding(tied=row["tied"], cap=0.7 if row["final"] == "cap" else None, bias=row["tied"]),
    )
    return variant, row["H_kv"], row["tied"]


DECODERS = ("GPT3", "GOPHER", "BLOOM", "LLAMA", "MISTRAL", "QWEN2", "QWEN3", "GEMMA", "GEMMA2", "GEMMA3", "NEOX")
DECODERS += ("GPT_NEO", "OPT", "OLMO2", "OLMO3", "OLMO_HYBRID", "GRANITE", "GRANITE_HYBRID", "NEMOTRON_H")
DECODERS += ("NEMOTRON3", "LFM2", "LFM2_MOE", "RECURRENT_GEMMA", "GLM4", "NANOCHAT", "COHERE2", "MINIMAX_M2")
DECODERS += ("LLAMA4", "MIXTRAL", "QWEN3_MOE", "QWEN3_NEXT", "QWEN3_5", "QWEN3_5_MOE", "OLMOE", "GPT_OSS", "DEEPSEEK")
DECODERS += ("DEEPSEEK_V32", "GLM5", "GLM4_MOE", "GLM4_MOE_LITE", "QWEN2_MOE", "SEED_OSS", "ARCEE", "APERTUS")
DECODERS += ("ETTIN", "FALCON_H1", "GEMMA4", "GEMMA4_E", "GEMMA4_MOE")
DECODERS += ("ERNIE4_5", "STARCODER2", "KIMI_LINEAR", "HUNYUAN", "MINISTRAL3", "OLMO", "EXAONE4", "ERNIE4_5_MOE")
NAMED = {name: (small(getattr(algorithms, name)), 2, name.startswith("GEMMA")) for name in DECODERS}
NAMED["GPT3_SHARED"] = (NAMED["GPT3"][0].but(shared_layers=2), 2, False)
IN_TURN = (Attention(), Attention(positions=POSITIONS["distances"], clip=0.6), Attention(positions=ALiBi(), scale=0.7))
NAMED["IN_TURN"] = (PAPER.but(attention=IN_TURN), 2, False)
DELTA = GatedDelta(n=4, n_keys=2, d_key=3, d_value=5)
GATED_MLP = MLP(activation="gelu", gated=True, biases=False)
GATED = Attention(positions=POSITIONS["halves"], biases=False, gated=True)
NAMED["HYBRID"] = (algorithms.LLAMA.but(attention=(DELTA, GATED)), 2, False)
MAMBA = Mamba2(n=4, n_keys=2, d_key=3, d_value=5)
NAMED["MAMBA"] = (algorithms.LLAMA.but(attention=(MAMBA, GATED)), 2, False)
OF_LAYERS = (GATED_MLP, None, Experts(n=4, d_mlp=5), GATED_MLP.but(d_mlp=7, normalize_output=algorithms.LLAMA.norm))
ORDERS = ("norm_first", "norm_last", "no_norm", "side_by_side")
NAMED["LAYERS"] = (algorithms.LLAMA.but(attention=(GATED, Attention(window=3)), mlp=OF_LAYERS, order=ORDERS), 2, False)
# Document 000: Y = X + LN(Z) + FFN(X + LN(Z)), without biases, with ReLU, also with scores that are not divided;
# document 003, section 12.6: norms after the residual additions, projections without biases, an output bias.
OF_000 = {"mlp": MLP(activation="relu", biases=False), "order": "no_norm", "final_norm": False}
for scale in (None, 1.0):
    line = Attention(biases=False, normalize_output=LayerNorm(epsilon=1e-3), scale=scale)
    NAMED[f"000, scale {scale}"] = (PAPER.but(**OF_000, norm=LayerNorm(epsilon=1e-3), attention=line), 6, False)
OF_003 = {"embedding": Embedding(positions="sinusoidal"), "order": "norm_last", "final_norm": False}
OF_003 |= {"attention": Attention(biases=False), "mlp": MLP(activation="relu"), "unembedding": Unembedding(bias=True)}
NAMED["003"] = (PAPER.but(**OF_003, norm=LayerNorm(epsilon=1e-6)), 6, False)


def attends(variant: Variant) -> bool:
    """Whether all its mixers are attentions."""
    return all(isinstance(line, Attention) for line in variant.attentions)


RECURRENT = [name for name, (variant, _, _) in NAMED.items() if not (variant.is_one_stack and attends(variant))]
"""Those with layers that keep a state in place of keys and values, or in other stacks."""
COVERING = {f"row{i}": variant_of(row) for i, row in enumerate(covering_array(VALUES))}
EVERY = NAMED | COVERING
ENCODERS = {f"encoder{i}": variant_of(row) for i, row in enumerate(covering_array(BOTH_WAYS))}
ENCODERS["LLADA"] = (small(algorithms.LLADA), 1, True)
ENCODERS["MODERNBERT"] = (small(algorithms.MODERNBERT), 2, True)
ENCODER_DECODERS = {f"encoder_decoder{i}": variant_of(row) for i, row in enumerate(covering_array(ACROSS))}
SINK_LINES = tuple(Sinks(biases="qkv", cap=0.5, scale=0.7, positions=ALiBi(), window=w) for w in (None, 3))
OWN = {
    name: (small(variant), 2, False) for name, variant in (("SINKS", SINKS), ("EXPERTS", EXPERTS), ("SLOPES", SLOPES))
}
OWN |= {name: (small(variant), 2, True) for name, variant in (("DIFFERENTIAL", DIFFERENTIAL), ("LATENT", LATENT))}
OWN["SINKS_BY_DISTANCE"] = (PAPER.but(attention=SINK_LINES, norm=RMSNorm(epsilon=1e-3)), 3, True)
OWN["SINKS_IN_A_WINDOW"] = (small(SINKS.but(attention=SINKS.attention.but(window=9))), 2, False)
"""Custom lines, which `training.oracle` does not have."""


def config_of(name: str, **changes: Any) -> Any:
    """The configuration of a named variant, or of a row."""
    variant, H_kv, tied = (EVERY | OWN | ENCODERS | ENCODER_DECODERS)[name]
    L = SIZES["L"] if variant.shared_layers == 1 else 2 * variant.shared_layers
    L = L if variant.is_one_stack else variant.cycle + (not variant.lenders)
    sizes = {**SIZES, "L": L, "variant": variant, "H_kv": H_kv, "tied": tied, **changes}
    if name in ENCODER_DECODERS:
        return EDTransformerConfig(L_enc=sizes.pop("L"), L_dec=2, **sizes)
    return (ETransformerConfig if name in ENCODERS else DTransformerConfig)(**sizes)


def theta_of(config: DTransformerConfig, dtype: str = "float64") -> Any:
    """Random parameters, none of them 0 or 1, and so small that no residual stream without norms overflows."""
    return cases.random_theta(config, dtype=dtype, scale=0.2 if "no_norm" in config.variant.orders else 0.4)


def oracle_logits(x: Any, theta: Any, variant: Variant, **where: Any) -> np.ndarray:
    """The logits of θ's algorithm by the oracle's loops, of one sequence, or of one with a context ``z``."""
    parameters, x = family_parameters(theta), list(map(int, x))
    if "z" in where:
        return family.ed_logits(list(map(int, where.pop("z"))), x, parameters, variant, **where)
    of_algorithm = family.d_logits if isinstance(theta, DTransformerParams) else family.e_logits
    return of_algorithm(x, parameters, variant, **where)
