"""Prompts as a decoder reads them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from training.generation import inputs


class Prompt(NamedTuple):
    """A prompt."""

    tokens: list[int]  # from bos on
    given: int = 0  # how many characters of its end the continuation repeats
    begins: Bool[np.ndarray, "N_V"] | None = None  # the tokens that the continuation may begin with; None for all


def side_by_side(
    prompts: Sequence[Prompt], N_V: int
) -> tuple[Int[np.ndarray, "B l"], Int[np.ndarray, "B"], Bool[np.ndarray, "B N_V"] | None]:
    """Return the tokens of one or more prompts, padded on the right; their lengths; and the tokens that each
    continuation may begin with, or None.
    """
    x, lengths = inputs.padded_rows([prompt.tokens for prompt in prompts])
    if all(prompt.begins is None for prompt in prompts):
        return x, lengths, None
    every = np.ones(N_V, bool)
    return x, lengths, np.stack([every if prompt.begins is None else prompt.begins for prompt in prompts])
