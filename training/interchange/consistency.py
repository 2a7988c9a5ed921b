"""Check that config.json matches the tensors, before allocating what it describes, which could be huge."""

import fnmatch
import re
from collections.abc import Sequence

import numpy as np

from algorithms.alg01_embedding import sinusoid
from training.interchange.containers import Tensors
from training.interchange.description import Architecture, Fields, Model
from training.interchange.errors import InterchangeError

LAYER = re.compile(r"(?:^|\.)(?:(encoder|decoder)\.)?(?:h|blk|blocks?|layer|layers|albert_layer_groups)\.(\d+)\.")
SIDES = {"L": None, "L_enc": "encoder", "L_dec": "decoder"}
HEAD = "classifier.weight"
TOLERANCE = 0.01
"""Some tables are stored in bfloat16, and float32 angles are inexact for large positions."""


def later_layers(fields: Fields, model: Model) -> tuple[str, ...]:
    """Return the patterns of the tensors of layers after the last, which predict tokens after the next."""
    n, L = fields.integer("num_nextn_predict_layers", 0, least=0, limit=16), getattr(model.config, "L", 0)
    return tuple(f"{stack}.{l}.*" for l in range(L, L + n) for stack in ("*layers", "blk"))


def heads_left_out(fields: Fields, model: Model, names: Sequence[str]) -> str:
    """Return a note if a checkpoint has heads for tokens after the next that are not read; else ""."""
    patterns = (*later_layers(fields, model), "mtp.*")
    if model.config.variant.mtp or not any(fnmatch.fnmatchcase(name, of) for name in names for of in patterns):
        return ""
    n = max(fields.integer(name, 0, least=0) for name in ("num_nextn_predict_layers", "mtp_num_hidden_layers"))
    return f"{n or 'some'} heads for tokens after the next are left out: read is one alone, DeepSeek's, GLM's or Qwen's"


def ignored(fields: Fields, model: Model, architecture: Architecture) -> tuple[str, ...]:
    """Return the patterns of the tensors that are not parameters: also those of heads for tokens after the next, which
    transformers leaves out, too, unless the model has one.
    """
    if model.config.variant.mtp:
        return tuple(pattern for pattern in architecture.ignored if not pattern.startswith("mtp."))
    return *architecture.ignored, *later_layers(fields, model)


def check(fields: Fields, model: Model, tensors: Tensors, *, counts_mlps: bool = False) -> None:
    """Check the numbers of layers and classes in config.json, where MLPs may be layers of their own. Raises
    InterchangeError if the tensors have others, or if the classes are not named one by one.
    """
    later = later_layers(fields, model)
    names = [name for name in tensors.names if not any(fnmatch.fnmatchcase(name, pattern) for pattern in later)]
    found = [match.groups() for match in map(LAYER.search, names) if match]
    for size, side in SIDES.items():
        expected = 1 + max((int(number) for part, number in found if side in (None, part)), default=-1)
        of_layers = getattr(model.config, size, None)
        described = expected if of_layers is None else of_layers // model.config.shared_layers
        if counts_mlps:  # of no more layers than there may be: a file may name a billion
            described += sum(
                model.config.variant.lines(l).mlp is not None for l in range(min(of_layers or 0, expected))
            )
        if described != expected:
            of_side = f"of the {side} " if side else ""
            raise InterchangeError(
                f"{fields.path}: number of layers {of_side}({size}): expected {expected}, as {tensors.path} holds, "
                f"got {described}"
            )
    names = fields.table("id2label")
    if model.labels and names and (names.keys() != {*map(str, range(len(names)))} or len({*model.labels}) < len(names)):
        raise InterchangeError(
            f'{fields.path}: id2label: expected a different name for each class, numbered from "0", got {names}'
        )
    if model.labels and HEAD in tensors.names and tensors.shape(HEAD)[0] != len(model.labels):
        raise InterchangeError(
            f"{fields.path}: id2label: expected a name for each of the {tensors.shape(HEAD)[0]} classes of {HEAD}, "
            f"got {len(model.labels)}"
        )


def check_positions(tensors: Tensors, model: Model, ignored: Sequence[str]) -> None:
    """Compare stored tables with the sinusoids of the variant, except for rows of zeros, which are for padding. Raises
    InterchangeError if a table differs, for example because its positions were learned.
    """
    form = model.config.variant.embedding.positions
    if form in (None, "learned"):
        return
    for name in tensors.names:
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in ignored):
            stored = tensors.read(name).astype(np.float64)
            d_e = model.config.d_e
            if stored.size % d_e:
                raise InterchangeError(
                    f"{tensors.path}: {name} has {stored.size} numbers, expected a multiple of d_e = {d_e}"
                )
            stored = stored.reshape(-1, d_e)
            expected = np.asarray(sinusoid(np.arange(len(stored)), d_e, base=10000, form=form)).T
            same = np.abs(stored - expected).max(axis=1) <= TOLERANCE  # False for NaN
            different = ~same & stored.any(axis=1)
            if different.any():
                raise InterchangeError(
                    f"{tensors.path}: {name} differs from the {form} positions of the model from position "
                    f"{different.argmax()} on; this kind of model cannot have others"
                )
