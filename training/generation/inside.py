"""Changes of what a decoder computes, made while it reads prompts and in every step from the cache."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from algorithms.inside import At, at, intervene
from training.generation import decoding, prefilling


def changed(changes: Mapping[str, Any] | Mapping[At, Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return `prefilling.prefill` and `decoding.decode` with changes, which are applied to every token, as by
    `algorithms.inside.intervene`. Raises ValueError if one is of some tokens, or of K or V.
    """
    places = {_of_all_tokens(name): new for name, new in changes.items()}
    return intervene(prefilling.prefill, places), intervene(decoding.decode, places)


def _of_all_tokens(name: str) -> At:
    where = name if isinstance(name, At) else at(name)
    for part in ("token", "context"):
        if getattr(where, part) is not None:
            raise ValueError(
                f"{where}: expected no {part} while text is generated, since each token is read in a separate step, "
                f"got {getattr(where, part)}; leave it out"
            )
    if re.split(r"[@/\[]", where, maxsplit=1)[0] in ("K", "V"):
        raise ValueError(
            f"{where}: expected a change of something else, since the keys and values of prompts are computed "
            "again for the cache; change what they are computed from, X_tilde@5"
        )
    return where
