"""Between θ and foreign parameters: loading one into the other, and which foreign parameter holds which of θ."""

import difflib
import importlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .recording import GlueError

__all__ = ["fit", "held", "load"]

MOST = 0.99  # the share of an array's numbers that a parameter must have to hold it


def fit(arrays: Sequence[Any], shape: Sequence[int], *, transposed: bool = False) -> np.ndarray:
    """Arrays of θ in the shape of a foreign parameter: heads one below the other, and arrays one below the other.

    The paper's matrices are [d_out, d_in]; `transposed`: the foreign one is [d_in, d_out]. Where only one of both fits,
    that is taken.

    Raises:
        ValueError: if there are more or fewer numbers.
    """
    shape = tuple(shape)
    parts = [np.asarray(a) for a in arrays]
    if len(parts) == 1 and parts[0].ndim == len(shape) == 3:
        for axes in ((0, 1, 2), (0, 2, 1), (2, 0, 1), (1, 0, 2), (2, 1, 0), (1, 2, 0)):
            if tuple(parts[0].shape[i] for i in axes) == shape:
                return np.ascontiguousarray(np.transpose(parts[0], axes))
    is_bias = all(a.ndim < 2 for a in parts) or len(shape) == 1
    M = np.concatenate([a.reshape(-1) if is_bias else a.reshape(-1, a.shape[-1]) for a in parts])
    if int(np.prod(shape)) != M.size:
        raise ValueError(f"expected {int(np.prod(shape))} numbers for a parameter of shape {shape}, got {M.size}")
    if M.shape == shape and not (transposed and M.shape[::-1] == shape):
        return M
    turns = M.ndim == 2 and (transposed or M.shape[::-1] == shape)
    return np.ascontiguousarray(M.T if turns else M).reshape(shape)


def load(model: Any, table: Mapping[str, str], theta: Mapping[str, Any], *, layers: int = 1) -> list[str]:
    """Put θ into a PyTorch model; returns the foreign parameters that the table does not fill.

    `table`: pattern of a parameter's name → names of θ, separated by spaces, with "T:" in front where the foreign
    matrix is [d_in, d_out]. "{l}" is the foreign layer from 0 in a pattern, and the paper's from 1 in names; "{2l+1}"
    every second one.

    Raises:
        GlueError: for a name that the model or θ does not have, another size, or fewer layers than the model has.
    """
    torch: Any = importlib.import_module("torch")

    named, filled = dict(model.named_parameters(remove_duplicate=False)), set()
    for pattern, names in table.items():
        has_layers = _numbered(pattern, 0) != pattern
        for l in range(layers) if has_layers else (0,):
            foreign = _numbered(pattern, l)
            of_theta = _numbered(names.removeprefix("T:"), l + 1).split()
            for wanted, known, what in [(foreign, named, "the model"), *((name, theta, "θ") for name in of_theta)]:
                if wanted not in known:
                    near = difflib.get_close_matches(wanted, known, 3, 0.4) or sorted(known)[:3]
                    raise GlueError(f"load: expected names that {what} has, such as {', '.join(near)}; got {wanted!r}")
            try:
                array = fit([theta[name] for name in of_theta], named[foreign].shape, transposed=names.startswith("T:"))
            except ValueError as error:
                sizes = f"make the model with the case's sizes, and look at the row {pattern!r} of the table"
                raise GlueError(f"load: {foreign} from {', '.join(of_theta)}: {error}; {sizes}") from error
            named[foreign].data.copy_(torch.tensor(array))
            filled.add(id(named[foreign]))
        if has_layers and _numbered(pattern, layers) in named:
            raise GlueError(f"load: expected layers= to be the number of layers, got {layers}, and there is "
                            f"{_numbered(pattern, layers)}; give layers=case.sizes['L']")  # fmt: skip
    return [name for name, parameter in named.items() if id(parameter) not in filled]


def _numbered(pattern: str, l: int) -> str:
    """A name with the number of a layer: "{l}", or "{2l+1}" where there are two in its place."""
    return re.sub(r"\{(\d*)l(?:\+(\d+))?\}", lambda match: str(int(match[1] or 1) * l + int(match[2] or 0)), pattern)


def held(
    parameters: Mapping[str, Any], theta: Mapping[str, Any]
) -> tuple[dict[str, list[Any]], list[str], dict[str, Any]]:
    """Which foreign parameter holds which of θ, by numbers alone.

    Result: foreign name → its parts `(name, flat indices there, flat indices in the foreign parameter)`, of numbers that
    are there once; the names of θ that nothing holds; the foreign parameters that hold little of θ.
    """
    maps, extras, loaded = {}, {}, set()
    flat = {name: np.asarray(a, np.float64).reshape(-1) for name, a in theta.items()}
    for foreign, a in parameters.items():
        parts, covered = [], 0
        for name, mine in flat.items():
            found = _part(mine, np.asarray(a).reshape(-1))
            if found is not None:
                parts.append((name, *found))
                covered += min(mine.size, np.size(a))
                loaded.add(name)
        if parts and covered >= 0.5 * np.size(a):
            maps[foreign] = parts
        else:
            extras[foreign] = a
    return maps, [name for name in theta if name not in loaded], extras


def _part(mine: np.ndarray, theirs: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """The indices of numbers of θ in both arrays, if one holds the other."""
    few, many = (mine, theirs) if mine.size <= theirs.size else (theirs, mine)
    if few.size < 2:
        return None
    order = np.argsort(many, kind="stable")
    at = np.minimum(np.searchsorted(many[order], few), many.size - 1)
    equal = many[order[at]] == few
    if equal.mean() < MOST:
        return None
    once = np.searchsorted(many[order], few, "right") - np.searchsorted(many[order], few, "left") == 1
    numbers, counts = np.unique(few, return_counts=True)
    once &= np.isin(few, numbers[counts == 1])
    i = np.flatnonzero(equal & once)
    return (i, order[at[i]]) if mine.size <= theirs.size else (order[at[i]], i)
