"""A case: θ, inputs, and what every line computes from them, as files that any language can read.

case.json                algorithm, sizes, inputs, choices; loss, a step, sampling; of each value its line and formula
parameters.safetensors   θ by the paper's names, float32 (exact: every line is computed from these numbers)
lines.safetensors        float64: "l1/6:4.1" is line 1 of Algorithm 4 in line 6 of layer 1, its heads in front
gradients.safetensors    float64: ∇loss(θ) by every parameter
updated.safetensors      float64: θ after one step of gradient descent
"""

import dataclasses
import functools
import json
import pathlib
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import load_file

from .match import MARGIN, Finder
from .reference import Reference

__all__ = ["EPSILON", "Case", "read_case", "rounded", "tolerances"]

FORMAT = 1
EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "bfloat16": 2.0**-8, "float16": 2.0**-10}
"""The relative rounding error of each dtype."""


@dataclasses.dataclass(frozen=True)
class Case:
    """Random parameters and inputs of an algorithm."""

    algorithm: int  # 4 to 10
    sizes: dict[str, int]  # by the paper's names
    theta: dict[str, np.ndarray]  # by the paper's names, heads in front: "l1/W_q" [H, d_attn, d_x]
    # of 8 to 10 the tokens x, of 8 also z, of 9 the labels and which are masked; of 4 and 5 X, Z, Mask; of 6 and 7 e;
    # where tokens are padded the length of x or z before, and where there are several, all sequences
    inputs: dict[str, Any]
    base: dict[str, str] = dataclasses.field(default_factory=dict)  # a variant's choices, by scope
    variant: str = "PAPER"
    eta: float = 0.1  # of the step of gradient descent
    sampling: dict[str, Any] = dataclasses.field(default_factory=dict)  # prompt, tau, draws and the tokens y
    record: Any = None  # the variant as the library has it, in the process that made the case

    @functools.cached_property
    def lengths(self) -> dict[int, int]:
        """The numbers of tokens, each with that of the tokens that are not padding: these alone have values of lines."""
        padded = {"x": self.inputs.get("length"), "z": self.inputs.get("z_length")}
        found: dict[int, int] = {}
        for name in ("x", "z", "X", "Z", "e"):
            if name in self.inputs:
                l = np.shape(self.inputs[name])[-1]
                found[l] = max(found.get(l, 0), padded.get(name) or l)
        if "mtp/W_m" in self.theta:  # its tokens are shifted once, or twice by mistake
            found |= {l - n: l - n for l in list(found) for n in (1, 2)}
        return found

    @property
    def epsilon(self) -> float:
        """The ε of norms, which code that has one must be given; the paper has none."""
        return float(self.base.get("norm_epsilon", "0").strip("+√"))

    @property
    def rotary_base(self) -> float | None:
        """The base of rotary positions; None where there are none."""
        said = next((name for scope, name in self.base.items() if scope.partition("@")[0] == "rotation"), "none")
        return None if said == "none" else float(said.split(" ")[1])

    def rounded(self, dtype: str) -> "Case":
        """The case with θ as foreign code of a dtype has it."""
        return dataclasses.replace(self, theta=rounded(self.theta, dtype))


def rounded(arrays: dict[str, np.ndarray], dtype: str) -> dict[str, np.ndarray]:
    """Arrays as a narrow dtype has them."""
    if dtype not in ("bfloat16", "float16"):
        return arrays
    to = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16
    return {name: W.astype(to).astype(np.float32) for name, W in arrays.items()}


def tolerances(case: Case, dtype: str) -> dict[str, float]:
    """The largest error of each line in a whole run in a dtype, by its id."""
    run = Reference(case.rounded(dtype), epsilon=EPSILON[dtype], finder=Finder([], case.lengths)).go()
    return {visit: MARGIN * seen.tolerance for visit, seen in run.lines.items()}


def read_case(directory: str | pathlib.Path) -> Case:
    """A case from its files.

    Raises:
        ValueError: if the directory holds none of this format.
    """
    directory = pathlib.Path(directory)
    path = directory / "case.json"
    if not path.is_file():
        raise ValueError(f"{directory}: expected a case, with case.json; write one with --write-case")
    state = json.loads(path.read_text("utf-8"))
    if state.get("format") != FORMAT:
        raise ValueError(f"{path}: expected format {FORMAT}, got {state.get('format')}; write the case again")
    inputs = {n: np.asarray(v) if n in ("X", "Z", "Mask", "e") else v for n, v in state["inputs"].items()}
    theta = load_file(directory / "parameters.safetensors")
    named = {name: state[name] for name in ("algorithm", "sizes", "base", "variant", "eta", "sampling")}
    return Case(theta=theta, inputs=inputs, **named)
