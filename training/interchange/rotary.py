"""Rotary positions in a config.json, with the fields of versions 4 and 5 of transformers."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from algorithms.lines import Linear, Llama3, Rotary, Temperature, Yarn
from training.interchange.description import Field, Fields, fields_of, value_at

SLIDING, FULL = "sliding_attention", "full_attention"
BASE, SHARE = "rope_theta", "partial_rotary_factor"
NOWHERE = {"rope_type": "default", BASE: None}
"""Value of `rope_parameters` where attentions have no positions."""

_LONG, _L_MAX = "original_max_position_embeddings", lambda found: found["l_max"]
_LLAMA3 = "factor low high l_original", f"factor low_freq_factor high_freq_factor {_LONG}", 1.0, 1.0, 4.0, _L_MAX
_YARN = "factor slow fast l_original truncate", f"factor beta_slow beta_fast {_LONG} truncate", 1.0, 1.0, 32.0, _L_MAX
SCALINGS: dict[str, tuple[Any, list[Field]]] = {
    "default": (type(None), []),
    "proportional": (type(None), []),  # whose pairs are those of all rows
    "dynamic": (type(None), []),  # which changes nothing for as many tokens as were trained on
    "linear": (Linear, fields_of("factor", "factor", 1.0)),
    "llama3": (Llama3, fields_of(*_LLAMA3)),
    "yarn": (Yarn, fields_of(*_YARN, True)),
}
"""By rope_type: our line, and its fields."""


class Positions(NamedTuple):
    """The fields of rotary positions, which are those of a line at a path; as a `Field`."""

    ours: str = "attention.positions"
    base: float = 10_000.0  # the default of rope_theta
    share: float | None = None  # the default of partial_rotary_factor; None: all rows are rotated
    pairs: Literal["halves", "neighbors", "halves_swapped"] = "halves"
    kind: str = ""  # of layers, if these have positions of their own
    names: tuple[str, str] = (BASE, SHARE)  # of what config.json has beside rope_parameters
    scaled: bool = True  # whether rope_scaling scales them
    scales_scores: bool = False  # whether mscale_all_dim also scales the scores
    optional: bool = False  # whether there are none where the base is null
    grows: bool = False  # whether queries have a temperature

    def read(self, fields: Fields, found: dict[str, Any]) -> None:
        """Add the positions to what was found."""
        said, share = self._said(fields), 1.0
        if self.share is None:
            said.require(SHARE, 1.0, "rotary positions for only part of the rows")
        else:
            share = said.number(SHARE, self.share)
        scaling = _scaling(said, found["l_max"], has_scales=self.scales_scores or self.grows)
        if isinstance(scaling, Yarn) and self.scales_scores:
            scaling = dataclasses.replace(scaling, scores=said.number("mscale_all_dim", 0.0))
        is_none = self.optional and said.has(BASE) and said.get(BASE) is None
        of_all = said.get("rope_type") == "proportional"
        said.require("factor", 1.0, "another factor of wavelengths") if of_all else None
        rotary = Rotary(
            base=said.number(BASE, self.base), share=share, of_all=of_all, pairs=self.pairs, scaling=scaling
        )
        if self.grows and (c := said.number("llama_4_scaling_beta", 0.0)):
            rotary = rotary.but(temperature=Temperature(c=c, n=said.integer(_LONG), first=0))
        found[self.ours] = None if is_none else rotary

    def _said(self, fields: Fields) -> Fields:
        """Return the fields: as in transformers, rope_scaling replaces rope_parameters, or changes those of a kind."""
        state, kind = fields.table("rope_parameters"), self.kind or FULL
        scaling = fields.table("rope_scaling") if self.scaled else {}
        by_kind = kind in state or FULL in state
        state = {**fields.inner(state).table(kind), **scaling} if by_kind else scaling or state
        beside = {name: fields.get(theirs) for name, theirs in zip((BASE, SHARE), self.names, strict=True)}
        return fields.inner({name: value for name, value in beside.items() if value is not None} | state)

    def fill(self, state: dict[str, Any], config: Any, lines: Mapping[str, Any]) -> None:
        """Add the fields to a config.json."""
        positions = value_at(config, self.ours, lines)
        of_others = self.ours.partition(".")[0] not in lines and "attention" in lines
        positions = lines["attention"].positions if of_others else positions
        found = NOWHERE if self.optional and positions is None else rotary_fields(positions)
        found |= {} if self.share is None else {SHARE: getattr(positions, "share", 1.0)}
        if self.scales_scores and isinstance(scaling := getattr(positions, "scaling", None), Yarn):
            found |= {"attention_factor": scaling.attention_factor, "mscale_all_dim": scaling.scores}
        if self.grows and (grow := getattr(positions, "temperature", None)):
            found |= {"llama_4_scaling_beta": grow.c, _LONG: grow.n}
        state["rope_parameters"] = {**state.get("rope_parameters", {}), self.kind: found} if self.kind else found


def _scaling(fields: Fields, l_max: int, *, has_scales: bool) -> Linear | Llama3 | Yarn | None:
    """Return the scaling of rotary frequencies; ``has_scales``: whether mscale and mscale_all_dim may scale sines."""
    kind = fields.get("rope_type", fields.get("type", "default"))
    if str(kind) not in SCALINGS:
        fields.needs.append(f"another scaling of positions (rope_type = {kind!r})")
        return None
    line, table = SCALINGS[kind]
    found: dict[str, Any] = {"l_max": l_max}
    for row in table:
        row.read(fields, found)
    del found["l_max"]
    if line is Yarn and fields.get("attention_factor"):
        found["attention_factor"] = fields.number("attention_factor", 1.0)
    scaling = line(**found)
    if not isinstance(scaling, Yarn):
        return scaling
    if scaling.attention_factor == scaling.magnitude():
        scaling = dataclasses.replace(scaling, attention_factor=None)
    if not has_scales:
        fields.require("mscale", None, "another scaling of the scores")
        fields.require("mscale_all_dim", None, "another scaling of the scores")
        return scaling
    mscale, of_scores = fields.number("mscale", 0.0), fields.number("mscale_all_dim", 0.0)
    if not (mscale and of_scores and scaling.attention_factor is None):
        return scaling
    return dataclasses.replace(scaling, attention_factor=scaling.magnitude(mscale) / scaling.magnitude(of_scores))


def rotary_fields(positions: Any) -> dict[str, Any]:
    """Return the fields of rotary positions; for others the defaults, which differ when they are read back."""
    if not isinstance(positions, Rotary):
        return {"rope_type": "default", BASE: 10_000.0}
    scaling = positions.scaling
    kind = next((kind for kind, (line, _) in SCALINGS.items() if isinstance(scaling, line)), "default")
    kind = "proportional" if positions.of_all and scaling is None else kind
    found = {"rope_type": kind, BASE: positions.base}
    found |= {row.names: row.write(scaling) for row in SCALINGS[kind][1]}
    factor = getattr(scaling, "attention_factor", None)
    return found if factor is None else found | {"attention_factor": factor}
