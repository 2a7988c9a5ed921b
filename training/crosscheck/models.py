"""Variants with numbers that matter at the sizes of a run, and parameters as the oracle has them."""

import dataclasses
import sys
from typing import Any

import numpy as np

from algorithms import Variant, lines
from training.oracle.parameters import STACKED, IsWhole, unstack

__all__ = ["YARN", "drawn", "family_parameters", "few", "small"]

LAYERS = 3
"""Number of layers that share their parameters, in variants with such layers."""

YARN = lines.Yarn(factor=4.0, l_original=7, slow=0.3, fast=2.0)
"""The scaling of positions, where a variant has one of this kind."""


def _is(record: Any, kind: type) -> bool:
    """Whether a record is of a kind, also if it is of a copy of the package, whose classes are others."""
    own = ((c.__module__, c.__qualname__) for c in type(record).__mro__)
    return (kind.__module__, kind.__qualname__) in own


FEW: dict[type, dict[str, int]] = {
    lines.KimiDelta: {"n": 4, "n_keys": 4, "d_key": 3, "d_value": 3, "rank": 3},  # transformers has one number of rows
    lines.GatedDelta: {"n": 4, "n_keys": 2, "d_key": 3, "d_value": 5},
    lines.Mamba2: {"n": 4, "n_keys": 2, "d_key": 3, "d_value": 6},  # transformers has only a multiple of d_e rows
    lines.RGLRU: {"n": 4, "d": 3},
    lines.ShortConvolution: {"d": 24},  # transformers has d_e rows
}
"""Sizes of mixers other than attention."""


def few(variant: Variant) -> Variant:
    """A named variant with few rows and experts, windows that a few tokens show, and few layers that share parameters."""

    def line(a: Any) -> Any:
        if _is(a, lines.Parallel):
            return a.but(attention=line(a.attention), recurrence=line(a.recurrence))
        of_mixer = next((sizes for kind, sizes in FEW.items() if _is(a, kind)), None)
        if of_mixer:
            return a.but(**of_mixer)
        if not _is(a, lines.Attention):
            return a
        rows: dict[str, Any] = {"d_c": 6, "d_r": 4, "d_q": a.d_q and 9} if _is(a, lines.Latent) else {}
        if rows and a.indexer:
            rows["indexer"] = a.indexer.but(n=5, d=7, k=4)
        positions = a.positions.but(n=3) if _is(a.positions, lines.Temperature) else a.positions
        if getattr(positions, "temperature", None) is not None:
            scaling = positions.scaling and positions.scaling.but(l_original=3)  # one number in Ministral 3's files
            positions = positions.but(temperature=positions.temperature.but(n=3), scaling=scaling)
        rows |= {"d_head": a.d_head and 8, "n_keys": a.n_keys and 2}
        return dataclasses.replace(a, **rows, window=None if a.window is None else 5, positions=positions)

    def mlp(m: Any) -> Any:
        if _is(m, lines.Experts):
            groups = {} if m.groups == 1 else {"groups": 3, "chosen_groups": 2}
            return dataclasses.replace(m, n=6, k=min(m.k, 3), **groups)
        return m if m is None or m.d_mlp is None else m.but(d_mlp=9)

    shared_layers, end = 1 if variant.shared_layers == 1 else LAYERS, variant.layer_end
    attentions, mlps = variant.attentions, variant.mlps_in_turn
    if variant.lenders:  # a layer of each kind, twice
        lenders = [attentions[l] for l in sorted(variant.lenders)]
        attentions = (*lenders, *(dataclasses.replace(a, keys_of=l) for l, a in enumerate(lenders)))
        mlps = (*mlps[:1] * 2, *mlps[-1:] * 2)
    return variant.but(
        attention=tuple(map(line, attentions)),
        mlp=tuple(map(mlp, mlps)),
        layer_end=end and end.but(d=end.d and 3),
        first=tuple(map(mlp, variant.first[:1])),
        shared_layers=shared_layers,
    )


def small(variant: Variant) -> Variant:
    """The same with caps, clips, scales, factors and bases that matter at the tests' sizes."""

    def line(a: Any) -> Any:
        if _is(a, lines.Parallel):
            return a.but(attention=line(a.attention), recurrence=line(a.recurrence))
        if _is(a, lines.Mamba2):
            return a.but(delta_min=a.delta_min and 0.6)
        if not _is(a, lines.Attention):
            return a
        scaling: Any = getattr(a.positions, "scaling", None)
        changes = {"base": 20.0 if a.window is None else 7.0, "share": 0.5, "buckets": 6, "farthest": 7}
        fields = {} if a.positions is None else {field.name for field in dataclasses.fields(a.positions)}
        changes = {name: value for name, value in changes.items() if name in fields and getattr(a.positions, name) != 1}
        if _is(scaling, lines.Yarn):
            changes["scaling"] = scaling.but(**{f.name: getattr(YARN, f.name) for f in dataclasses.fields(YARN)})
        return dataclasses.replace(
            a,
            positions=None if a.positions is None else a.positions.but(**changes),
            cap=None if a.cap is None else 0.5,
            scale=None if a.scale is None else 0.7,
            clip=None if a.clip is None else 0.6,
        )

    variant, cap = few(variant), None if variant.unembedding.cap is None else 0.7
    mlp = tuple(m.but(clip=0.7) if m and m.clip is not None else m for m in variant.mlps_in_turn)
    attention, unembedding = tuple(map(line, variant.attentions)), variant.unembedding.but(cap=cap)
    factors: dict[str, Any] = {}
    if variant.embedding.factor != 1:
        factors["embedding"] = variant.embedding.but(factor=1.5)
    if variant.residual_factor != 1:
        factors["residual_factor"] = 0.6
    return variant.but(attention=attention, mlp=mlp, unembedding=unembedding, **factors)


def drawn(rng: Any, name: str, shape: tuple[int, ...], small: float = 0.7, offset: float = 0.0) -> np.ndarray:
    """A random parameter, of a size with which every line matters.

    `name`: in θ, or by the paper, below a stack; `small`: of embeddings; `offset`: what its norm adds to γ.
    """
    leaf, x = name.rpartition("/")[2], rng.normal(size=shape)
    if leaf in ("W_e", "W_p", "W_t"):
        return small * x
    if leaf.startswith(("W", "distances")):
        return x * (1.4 if leaf in ("W_q", "W_k") else 1.0) * (1.0 if leaf[0] == "d" else shape[-1] ** -0.5)
    return 1.0 - offset + 0.3 * x if leaf.startswith("gamma") else 0.4 * x


def family_parameters(theta: Any, is_whole: IsWhole = lambda l, name: False) -> Any:
    """Parameters as the oracle has them; the arguments are those of `unstack`."""
    of = sys.modules[type(theta).__module__]  # a mutated copy has its own
    stacks = {name: getattr(theta, name) for name in STACKED if type(getattr(theta, name, None)) is tuple}
    layers = {
        name: of.places(theta.variant, of.count_layers(of_name, theta.variant)) for name, of_name in stacks.items()
    }
    return unstack(theta, layers, is_whole)
