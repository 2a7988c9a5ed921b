"""Variants for the tests: the named ones at small sizes, a covering array of lines, and both as the oracle has them.

Windows, caps and shares are small enough to matter at the tests' sizes, so that leaving one out is seen.
"""

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import algorithms
from algorithms import PAPER, DTransformerConfig, Variant, init_d_transformer
from algorithms.lines import (
    MLP,
    ALiBi,
    Attention,
    Distances,
    Embedding,
    Experts,
    LayerNorm,
    Linear,
    Llama3,
    RMSNorm,
    Rotary,
    TransformerXL,
    Unembedding,
    Yarn,
)
from tests import cases
from tests.oracle import family
from tests.oracle.parameters import unstack_family
from tests.own_lines.differential import DIFFERENTIAL
from tests.own_lines.experts import EXPERTS
from tests.own_lines.latent import LATENT
from tests.own_lines.sinks import SINKS, Sinks

SIZES = {"N_V": 19, "l_max": 17, "L": 3, "H": 6, "d_e": 10, "d_mlp": 13, "d_attn": 4, "d_mid": 5}
X = np.random.default_rng(0).integers(0, 19, (2, 13))

POSITIONS = {
    "halves": Rotary(base=20.0),
    "neighbors": Rotary(base=20.0, share=0.5, pairs="neighbors"),
    "linear": Rotary(base=20.0, scaling=Linear(factor=3.0)),
    "llama3": Rotary(base=20.0, scaling=Llama3(factor=4.0, low=0.5, high=2.0, l_original=7)),
    "yarn": Rotary(base=20.0, scaling=Yarn(factor=4.0, l_original=7, slow=0.3, fast=2.0)),
    "distances": Distances(buckets=6, farthest=7),
    "alibi": ALiBi(),
    "transformer_xl": TransformerXL(base=20.0),
}

VALUES: Mapping[str, tuple[Any, ...]] = {
    "norm": (LayerNorm(epsilon=1e-3), RMSNorm(epsilon=1e-3), RMSNorm(epsilon=1e-3, offset=1.0)),
    "embedding": ("learned", "in_attention", "sinusoidal_halves", None),
    "positions": (None, *POSITIONS),
    "order": (None, "norm_last", "side_by_side", "no_norm"),
    "windows": ((None,), (5,), (None, 3)),
    "scale": (None, 0.7),
    "cap": (None, 0.5),
    "biases": (True, False, "qkv", "out"),
    "normalize_heads": (False, True),
    "normalize_output": (False, True),
    "mlp": ("gelu", "gated silu", "relu without biases", None),
    "H_kv": (6, 2, 1),
    "scaled": (False, True),
    "tied": (False, True),
    "final": ("norm", "cap", "nothing"),
}


def covering_array() -> list[dict[str, Any]]:
    """Rows in which every value of each field meets every value of every other field at least once."""
    names = tuple(VALUES)
    pairs = {
        ((a, i), (b, j))
        for a, b in itertools.combinations(names, 2)
        for i in range(len(VALUES[a]))
        for j in range(len(VALUES[b]))
    }
    rng = np.random.default_rng(0)
    rows = []
    while pairs:
        (a, i), (b, j) = min(pairs)
        candidates = [{n: int(rng.integers(len(VALUES[n]))) for n in names} | {a: i, b: j} for _ in range(200)]
        covered = [pairs & set(itertools.combinations(row.items(), 2)) for row in candidates]
        best = max(range(len(candidates)), key=lambda n: len(covered[n]))
        pairs -= covered[best]
        rows.append({n: VALUES[n][k] for n, k in candidates[best].items()})
    return rows


def variant_of(row: Mapping[str, Any]) -> tuple[Variant, int, bool]:
    """The variant of a row, its H_kv and whether it is tied."""
    norm = row["norm"]
    of_heads = RMSNorm(epsilon=norm.epsilon, offset=getattr(norm, "offset", 0.0))
    line = Attention(
        positions=None if row["positions"] is None else POSITIONS[row["positions"]],
        scale=row["scale"],
        cap=row["cap"],
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


def small(variant: Variant) -> Variant:
    """A named variant with windows, caps and bases that matter at the tests' sizes, and layers that share as these."""

    def line(a: Attention) -> Attention:
        changes = {"base": 20.0 if a.window is None else 7.0, "share": 0.5, "buckets": 6, "farthest": 7}
        fields = {} if a.positions is None else {field.name for field in dataclasses.fields(a.positions)}
        changes = {name: value for name, value in changes.items() if name in fields and getattr(a.positions, name) != 1}
        if isinstance(getattr(a.positions, "scaling", None), Yarn):
            changes["scaling"] = POSITIONS["yarn"].scaling
        return a.but(
            positions=None if a.positions is None else a.positions.but(**changes),
            window=None if a.window is None else 5,
            cap=None if a.cap is None else 0.5,
            scale=None if a.scale is None else 0.7,
        )

    cap = None if variant.unembedding.cap is None else 0.7
    mlp = variant.mlp
    if mlp is not None and mlp.clip is not None:
        mlp = mlp.but(clip=0.7)
    if type(mlp) is Experts:
        groups = {} if mlp.groups == 1 else {"groups": 3, "chosen_groups": 2}
        mlp = mlp.but(n=6, k=min(mlp.k, 3), **groups)
    lines = {
        "attention": tuple(map(line, variant.attentions)),
        "mlp": mlp,
        "unembedding": variant.unembedding.but(cap=cap),
    }
    return variant.but(**lines, shared_layers=1 if variant.shared_layers == 1 else SIZES["L"])


DECODERS = ("GPT3", "GOPHER", "BLOOM", "LLAMA", "MISTRAL", "QWEN2", "QWEN3", "GEMMA", "GEMMA2", "GEMMA3", "NEOX")
DECODERS += ("GPT_NEO", "OPT", "OLMO2", "MIXTRAL", "QWEN3_MOE", "OLMOE", "GPT_OSS")
NAMED = {name: (small(getattr(algorithms, name)), 2, name.startswith("GEMMA")) for name in DECODERS}
NAMED["GPT3_SHARED"] = (NAMED["GPT3"][0].but(shared_layers=2), 2, False)
COVERING = {f"row{i}": variant_of(row) for i, row in enumerate(covering_array())}
EVERY = NAMED | COVERING
SINK_LINES = tuple(Sinks(biases="qkv", cap=0.5, scale=0.7, positions=ALiBi(), window=w) for w in (None, 3))
OWN = {name: (small(variant), 2, False) for name, variant in (("SINKS", SINKS), ("EXPERTS", EXPERTS))}
OWN |= {name: (small(variant), 2, True) for name, variant in (("DIFFERENTIAL", DIFFERENTIAL), ("LATENT", LATENT))}
OWN["SINKS_BY_DISTANCE"] = (PAPER.but(attention=SINK_LINES, norm=RMSNorm(epsilon=1e-3)), 3, True)
OWN["SINKS_IN_A_WINDOW"] = (small(SINKS.but(attention=SINKS.attention.but(window=9))), 2, False)
"""Lines of one's own, which `tests.oracle` does not have."""


def config_of(name: str, **changes: Any) -> DTransformerConfig:
    """The configuration of a named variant, or of a row."""
    variant, H_kv, tied = (EVERY | OWN)[name]
    L = SIZES["L"] if variant.shared_layers == 1 else 2 * variant.shared_layers
    return DTransformerConfig(**{**SIZES, "L": L, "variant": variant, "H_kv": H_kv, "tied": tied, **changes})


def theta_of(config: DTransformerConfig, dtype: str = "float64") -> Any:
    """Random parameters, none of them 0 or 1, and so small that no residual stream without norms overflows."""
    shapes = jax.eval_shape(lambda: init_d_transformer(jax.random.key(0), config))
    return cases.random_like(shapes, dtype=jnp.dtype(dtype), scale=0.2 if config.variant.order == "no_norm" else 0.4)


def oracle_logits(x: Any, theta: Any, variant: Variant, **where: Any) -> np.ndarray:
    """The logits of Algorithm 10 by the oracle's loops, of one sequence."""
    parameters = family_parameters(theta)
    options = options_of(variant, variant.shared_layers * len(parameters.layers))
    return family.d_logits([int(token) for token in x], parameters, options, **where)


def family_parameters(theta: Any) -> Any:
    """Parameters as the oracle has them: in lists, and the norms of what a layer adds beside those of what it reads."""
    unstacked = unstack_family(theta)
    for layer in (*getattr(unstacked, "layers", ()), *getattr(unstacked, "encoder", ())):
        _of_heads(layer.attention)
        layer.norm1_out, layer.norm2_out = (getattr(part, "norm_out", None) for part in (layer.attention, layer.mlp))
    for layer in getattr(unstacked, "decoder", ()):
        _of_heads(layer.self_attention)
        parts = layer.self_attention, layer.cross_attention, layer.mlp
        layer.norm3_out, layer.norm4_out, layer.norm5_out = (getattr(part, "norm_out", None) for part in parts)
    return unstacked


def _of_heads(attention: Any) -> None:
    """Give each head its own relative positions, which the parameters have for all heads together."""
    for h, head in enumerate(getattr(attention, "heads", ())):
        for name in ("W_r", "u", "v"):
            values = getattr(attention, name, None)
            setattr(head, name, None if values is None else values[h])


def options_of(variant: Variant, L: int) -> dict[str, Any]:
    """A variant of L layers as the oracle has it."""
    e, norm, u = variant.embedding, variant.norm, variant.unembedding
    rows = {"sinusoidal": "neighbors", "sinusoidal_fairseq": "fairseq"}.get(str(e.positions), "halves")
    sinusoid = {"kind": "sinusoidal", "base": 10_000.0, "rows": rows, "first": e.first_position}
    kinds = {
        None: None,
        "learned": {"kind": "learned", "first": e.first_position},
        "in_attention": {"kind": "learned_in_attention"},
    }
    return {
        **family.PAPER,
        "positions": kinds.get(e.positions, sinusoid),
        "embedding_scale": "sqrt_d_e" if e.scaled else 1.0,
        "norm": "rms_norm" if isinstance(norm, RMSNorm) else "layer_norm",
        "epsilon": norm.epsilon,
        "norm_offset": getattr(norm, "offset", 0.0),
        "order": "norm_first" if variant.order == "no_norm" else variant.order,
        "activation": variant.mlp.activation if variant.mlp else None,
        "clip": variant.mlp and variant.mlp.clip,
        "experts": _experts(variant.mlp),
        "attention": [_line(a) for a in variant.attentions],
        "L": L if variant.shared_layers > 1 else None,
        "logit_scale": "rsqrt_d_e" if u.tied and u.scaled else 1.0,
        "logit_cap": u.cap,
    }


def _line(a: Attention) -> dict[str, Any]:
    return {"positions": _positions(a.positions), "window": a.window, "scale": a.scale, "cap": a.cap}


def _positions(positions: Any) -> dict[str, Any] | None:
    if positions is None:
        return None
    if isinstance(positions, Distances):
        return {"kind": "distances", "num_buckets": positions.buckets, "max_distance": positions.farthest}
    if isinstance(positions, ALiBi | TransformerXL):
        kind = "alibi" if isinstance(positions, ALiBi) else "transformer_xl"
        return {"kind": kind, **dataclasses.asdict(positions)}
    rotary = {"kind": "rotary", **dataclasses.asdict(positions)}
    return rotary if positions.scaling is None else rotary | {"scaling": _scaling(positions.scaling)}


def _experts(line: Any) -> dict[str, Any] | None:
    names = ("k", "scores", "renormalized", "factor", "groups", "chosen_groups")
    return {name: getattr(line, name) for name in names} if type(line) is Experts else None


def _scaling(scaling: Linear | Llama3 | Yarn) -> dict[str, Any]:
    if isinstance(scaling, Linear):
        return {"kind": "linear", "factor": scaling.factor}
    if isinstance(scaling, Llama3):
        lengths = {"low_freq_factor": scaling.low, "high_freq_factor": scaling.high}
        return {"kind": "llama3", "factor": scaling.factor, **lengths, "original_length": scaling.l_original}
    rotations = {"beta_slow": scaling.slow, "beta_fast": scaling.fast, "truncate": scaling.truncate}
    return {"kind": "yarn", "factor": scaling.factor, **rotations, "original_length": scaling.l_original}
