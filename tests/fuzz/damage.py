"""Damaging JSON and bytes: what stays almost right finds more than noise."""

import json
from typing import Any

import numpy as np

from tests.fuzz.comparing import chance, one_of

__all__ = ["damaged_bytes", "damaged_json", "odd_value"]

NUMBERS = (0, -1, 1, 2**31, 2**63, -(2**64), 10**400, 1e308, -0.0, 1e-45, float("nan"), float("inf"))
OTHERS = (None, True, False, [], {}, [[]], [None], {"": None}, [0] * 50)
TEXTS = ("", "a", "\x00", "\ud800", "é", "💥", "gpt2", "null", "1e400", "../../x", "a" * 3000, "[UNK]", "\u202e", "\n")


def odd_value(rng: np.random.Generator) -> Any:
    """A value that few expect."""
    return one_of(
        rng,
        *NUMBERS,
        *OTHERS,
        int(rng.integers(-5, 300)),
        float(rng.standard_normal()),
        one_of(rng, *TEXTS),
        [one_of(rng, *TEXTS)],
        {one_of(rng, *TEXTS): 1},
    )


def damaged_json(rng: np.random.Generator, value: Any) -> Any:
    """A copy with one place of it changed, left out, doubled or exchanged."""
    if not isinstance(value, dict | list) or not value or chance(rng, 0.15):
        return odd_value(rng)
    copy = dict(value) if isinstance(value, dict) else list(value)
    place = one_of(rng, *copy) if isinstance(copy, dict) else int(rng.integers(len(copy)))
    if chance(rng, 0.5):
        copy[place] = damaged_json(rng, copy[place])
    elif chance(rng, 0.4):
        del copy[place]
    elif isinstance(copy, dict):
        copy[one_of(rng, *TEXTS, *copy)] = odd_value(rng) if chance(rng, 0.5) else copy[place]
    else:
        copy.insert(int(rng.integers(len(copy) + 1)), odd_value(rng) if chance(rng, 0.5) else copy[place])
    return copy


def damaged_bytes(rng: np.random.Generator, data: bytes) -> bytes:
    """Damaged as JSON where it is some, or cut, overwritten, doubled, or replaced by noise."""
    with_json = chance(rng, 0.7)
    if with_json:
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            with_json = False
        else:
            for _ in range(rng.integers(1, 4)):
                value = damaged_json(rng, value)
            return json.dumps(value).encode("utf-8", "surrogatepass")
    kind = one_of(rng, "cut", "overwrite", "overwrite", "insert", "noise", "empty", "nested")
    at = int(rng.integers(len(data) + 1))
    noise = rng.bytes(int(rng.integers(1, 40)))
    if kind == "cut":
        return data[:at]
    if kind == "overwrite":
        return data[:at] + noise + data[at + len(noise) :]
    if kind == "insert":
        return data[:at] + noise + data[at:]
    return {"noise": noise * 20, "empty": b"", "nested": b"[" * 100_000}[kind]
