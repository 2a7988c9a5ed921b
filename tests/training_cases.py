"""What the tests of training share: tiny data sets, settings and runs."""

import contextlib
import itertools
import string
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from training.data.batches import Batches, Examples
from training.data.loading import RunData, make_dataset
from training.data.records import Corpus, Document, fingerprint
from training.data.token_store import LabeledStore, PairStore, Splits, TokenStore, token_dtype
from training.data.tokenizers import CharacterTokenizer
from training.loop.program import Plan
from training.loop.trainer import Watch, train
from training.mesh.processes import Processes
from training.runs.directory import Description, RunDirectory
from training.runs.interrupts import Interrupts
from training.runs.metrics import read_metrics
from training.settings import Settings
from training.tasks import TASKS, settings_from
from training.tasks.models import model_config

LETTERS = 14
N_V = LETTERS + 3
TINY = {"H": 2, "d_e": 8, "d_mlp": 12, "l_max": 7, "batch_size": 4, "tensorboard": False, "peak": 1e9}
TOKEN_TASKS = [task for task in TASKS if task != "gato"]
"""The tasks whose batches have tokens alone."""
TINY |= {"optimizer": "adamw", "schedule": "cosine"}  # what compiles fast
TIMED = ("tokens_per_second", "mfu", "seconds", "memory_bytes")
GATO_SETTINGS = {"l_max": 80, "batch_size": 8, "d_r": 4, "n_groups": 2, "n_places": 2}
"""Sizes of the task gato that have room for a drawing."""
ALPHABET = CharacterTokenizer(string.ascii_lowercase)
"""Its texts, in which digits have names."""


def sequences(n: int, *, seed: int = 0, shortest: int = 3, longest: int = 11) -> list[list[int]]:
    """Texts with a pattern to learn: each letter is the one before it plus the text's stride."""
    rng = np.random.default_rng(seed)
    texts = []
    for _ in range(n):
        start, stride, length = rng.integers(LETTERS), rng.integers(1, 3), rng.integers(shortest, longest + 1)
        texts.append([N_V - 2, *((start + stride * np.arange(length - 2)) % LETTERS).tolist(), N_V - 1])
    return texts


def token_store_of(
    sequences: Sequence[Sequence[int]], N_V: int, *, n_bytes: int = 0, part: str = "train"
) -> TokenStore:
    """A store in memory of sequences that include bos and eos."""
    flat, offsets = np.array([*itertools.chain(*sequences)], np.int64), np.cumsum([0, *map(len, sequences)])
    own = fingerprint(N_V, flat.tolist(), offsets.tolist())
    return TokenStore(flat.astype(token_dtype(N_V)), offsets, N_V, n_bytes, own, part)


def text_store(n: int, *, seed: int = 0, part: str = "train") -> TokenStore:
    texts = sequences(n, seed=seed)
    return token_store_of(texts, N_V, n_bytes=sum(map(len, texts)), part=part)


def settings_for(task: str, **values: Any) -> Settings:
    layers = {"L_enc": 1, "L_dec": 1} if task == "ed" else {"L": 1}
    more = {"p_mask": 0.3} if task == "e" else GATO_SETTINGS if task == "gato" else {}
    return settings_from({**TINY, **layers, **more, "dropout": 0.0, **values}, task=task)


def batched(source: Callable[..., Examples], *stores: Any, batch_size: int, seed: int = 0, **options: Any) -> Batches:
    """The batches of a source's examples."""
    return Batches(source(*stores, **options), batch_size=batch_size, seed=seed)


def data_for(settings: Settings) -> RunData:
    """Tiny data for a task."""
    parts: list[Any] = [text_store(40, seed=1), text_store(9, seed=2, part="validation")]
    if settings.task == "ed":
        parts = [PairStore(store, store) for store in parts]
    elif settings.task == "classify":
        labels = [np.array([s[i][1] % 2 for i in range(len(s))], np.int32) for s in parts]
        parts = [LabeledStore(s, of_s, ("even", "odd")) for s, of_s in zip(parts, labels, strict=True)]
    tokenizer = CharacterTokenizer([chr(ord("a") + i) for i in range(LETTERS)])
    if settings.task == "gato":
        tokenizer = ALPHABET
        parts = [token_store_of(sequences(40), tokenizer.N_V, n_bytes=300, part=p) for p in ("train", "val")]
    train, validation = (make_dataset(settings, store, tokenizer=tokenizer) for store in parts)
    of_corpus = {"train": [Document("abc")], "validation": [Document("abc")], "test": []}
    corpus = Corpus(name="tiny", kind="text", fingerprint="", **of_corpus)
    found = {"corpus": corpus, "tokenizer": tokenizer, "train": train, "validation": validation}
    labels = ("even", "odd") if settings.task == "classify" else ()
    return RunData(**found, stores=Splits(*parts, parts[1]), labels=labels)


def untimed(metrics: Path) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl without what depends on the clock."""
    return [{name: value for name, value in line.items() if name not in TIMED} for line in read_metrics(metrics)]


class Witness:
    """An observer that remembers, and that can send a signal.

    Attributes:
        losses: by step.
        warnings: messages.
        facts: what was known when the training began; None before.
        evaluating_of: the number of batches of an evaluation, once for each of its batches.
    """

    def __init__(self, interrupts: Interrupts, *, stop_after: int = -1, stop_at_evaluation: int = -1) -> None:
        self._interrupts, self._stop_after, self._stop_at_evaluation = interrupts, stop_after, stop_at_evaluation
        self.losses: dict[int, float] = {}
        self.warnings: list[str] = []
        self.facts: Any = None
        self.evaluating_of: list[int] = []

    def began(self, facts: Any) -> None:
        self.facts = facts

    def updated(self, step: int, line: dict[str, Any]) -> None:
        self.losses[step] = line["loss"]
        if self._stop_after == step or self._stop_at_evaluation == step:
            self._interrupts.status = 143

    def evaluated(self, step: int, results: dict[str, float], run: Any) -> None:
        pass

    def evaluating(self, total: int) -> None:
        self.evaluating_of.append(total)

    def waiting(self, what: str) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def warned(self, message: str) -> None:
        self.warnings.append(message)


class Trainer(NamedTuple):
    """A training that is ready to begin."""

    plan: Plan
    files: RunDirectory
    watch: Watch

    def train(self) -> dict[str, float]:
        return train(*self)


def make_trainer(
    directory: Any,
    settings: Settings,
    *,
    initial: Any = None,
    fingerprints: dict[str, str] | None = None,
    writers: Any = (),
    **stops: int,
) -> tuple[Trainer, Witness]:
    """A trainer of a run in a directory, which may have begun before, and its witness."""
    data = data_for(settings)
    files = RunDirectory(directory)
    known = data.fingerprints | (fingerprints or {})
    description = Description(settings, model_config(settings, data.tokenizer.N_V), data.labels, known)
    if files.exists():
        files.check_continues(description)
    else:
        files.note(description, data.tokenizer)
    interrupts = Interrupts()
    witness = Witness(interrupts, **stops)
    clock = itertools.count().__next__
    watch = Watch(interrupts, witness, lambda: float(clock()), Processes(), writers)
    return Trainer(Plan.of(description, data, initial), files, watch), witness
