"""The data of a run: corpus, tokenizer, token stores, and the batches for training and for evaluation."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.corpora import SOURCES, load_corpus
from training.data_files import read_corpus
from training.data_records import Corpus, DataError, Kind
from training.data_store import TokenStore, tokenize_labelled, tokenize_pairs, tokenize_text
from training.datasets import Dataset, LabelledTexts, MaskedTokens, NextTokens, SequencePairs
from training.settings import Settings
from training.tokenizers import Tokenizer, build_tokenizer, load_tokenizer, sampled

KINDS: dict[str, Kind] = {"d": "text", "e": "text", "ed": "pairs", "classify": "labelled"}
TRAINED_ON = 100_000_000  # characters that a tokenizer is trained on, about


@dataclass(frozen=True, kw_only=True)
class RunData:
    """What a run trains on and is evaluated on.

    Attributes:
        corpus: the records, split.
        tokenizer: what makes tokens of them.
        train: the batches.
        validation: the held-out batches.
        labels: the classes, by number; none but for classification.
        notes: what a user should know: examples left out or cut.
    """

    corpus: Corpus[Any]
    tokenizer: Tokenizer
    train: Dataset
    validation: Dataset
    labels: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def tokens_per_byte(self) -> float | None:
        """Predicted tokens for each UTF-8 byte of the held-out text; None where not every byte is predicted once."""
        if not isinstance(self.validation, NextTokens):
            return None
        store = self.validation.store
        windows = self.validation.mode == "windows"  # there, only the first bos is not predicted
        return (store.n_tokens - (1 if windows else len(store))) / store.n_bytes

    @property
    def fingerprints(self) -> dict[str, str]:
        """Hashes of everything that decides tokens and batches."""
        return {
            "tokenizer": self.tokenizer.fingerprint(),
            "training data": self.train.fingerprint,
            "validation data": self.validation.fingerprint,
        }


def load_run_data(settings: Settings, *, tokenizer: Tokenizer | None = None, cache_dir: Path | None = None) -> RunData:
    """Reads, splits and tokenises the data of a run, and checks all of them.

    Args:
        settings: of the run.
        tokenizer: the run's, if it has one already.
        cache_dir: where tokens and fetched packages are kept.

    Raises:
        DataError: something is wrong with the data; the message says where.
    """
    corpus = _corpus(settings, cache_dir)
    if tokenizer is None:
        tokenizer = _tokenizer(settings, corpus)
    if settings.task in ("d", "e"):
        return _text(settings, corpus, tokenizer, cache_dir)
    if settings.task == "ed":
        return _pairs(settings, corpus, tokenizer, cache_dir)
    return _labelled(settings, corpus, tokenizer, cache_dir)


def _corpus(settings: Settings, cache_dir: Path | None) -> Corpus[Any]:
    kind = KINDS[settings.task]
    if not settings.data:
        raise DataError("no data were named; give the name of a data set, or files")
    named = [name for name in settings.data if name in SOURCES and not Path(name).is_file()]
    if not named:
        return read_corpus(settings.data, kind, validation_paths=settings.validation_data)
    if len(settings.data) > 1 or settings.validation_data:
        raise DataError(f"{named[0]} is a named data set with its own held-out part: it can not be joined with files")
    if SOURCES[named[0]].kind != kind:
        fitting = ", ".join(name for name, source in SOURCES.items() if source.kind == kind)
        raise DataError(
            f"{named[0]} holds {SOURCES[named[0]].kind}, but {settings.task} trains on {kind}; "
            f"choose {fitting}, or files"
        )
    return load_corpus(named[0], cache_dir=cache_dir)


def _texts(record: Any) -> Iterator[str]:
    """Every text of a record but its label and its place."""
    names = [name for name in record._fields if name not in ("label", "where")]
    return (getattr(record, name) for name in names)


def _tokenizer(settings: Settings, corpus: Corpus[Any]) -> Tokenizer:
    kind = settings.tokenizer
    if kind not in ("bytes", "characters", "words", "bpe"):
        return load_tokenizer(kind)
    parts: list[Iterable[Any]] = [corpus.train]
    if kind == "characters":
        parts += [corpus.validation, corpus.test]
    texts = _Texts(parts)
    if kind in ("words", "bpe"):
        size = sum(map(len, texts))
        return build_tokenizer(kind, sampled(texts, TRAINED_ON / max(size, 1)), N_V=settings.N_V)
    return build_tokenizer(kind, texts)


@dataclass(frozen=True)
class _Texts:
    """The texts of several collections of records, re-iterable."""

    parts: list[Iterable[Any]]

    def __iter__(self) -> Iterator[str]:
        return (text for part in self.parts for record in part for text in _texts(record))


def _text(settings: Settings, corpus, tokenizer: Tokenizer, cache_dir: Path | None) -> RunData:
    stores = tokenize_text(corpus, tokenizer, cache_dir=cache_dir)

    def make(store: TokenStore) -> Dataset:
        sizes: dict[str, int] = {"l_max": settings.l_max, "batch_size": settings.batch_size, "seed": settings.seed}
        if settings.task == "d":
            return NextTokens(store, mode=settings.rows, **sizes)
        return MaskedTokens(store, p_mask=settings.p_mask, rule=settings.masking, **sizes)

    notes = []
    if stores.train.dropped_paragraphs:
        notes.append(
            f"{stores.train.dropped_paragraphs} paragraphs of the training text are held out, so they are left out"
        )
    return RunData(
        corpus=corpus,
        tokenizer=tokenizer,
        train=make(stores.train),
        validation=make(stores.validation),
        notes=tuple(notes),
    )


def _pairs(settings: Settings, corpus, tokenizer: Tokenizer, cache_dir: Path | None) -> RunData:
    stores = tokenize_pairs(corpus, tokenizer, cache_dir=cache_dir)
    sizes: dict[str, int] = {"l_max": settings.l_max, "batch_size": settings.batch_size, "seed": settings.seed}
    train, validation = (SequencePairs(store, **sizes) for store in (stores.train, stores.validation))
    notes = _cut_notes(settings, train.n_too_long, validation.n_too_long, "pairs are left out")
    return RunData(corpus=corpus, tokenizer=tokenizer, train=train, validation=validation, notes=notes)


def _labelled(settings: Settings, corpus, tokenizer: Tokenizer, cache_dir: Path | None) -> RunData:
    stores = tokenize_labelled(corpus, tokenizer, cache_dir=cache_dir)
    sizes: dict[str, int] = {"l_max": settings.l_max, "batch_size": settings.batch_size, "seed": settings.seed}
    train, validation = (LabelledTexts(store, **sizes) for store in (stores.train, stores.validation))
    notes = _cut_notes(settings, train.n_too_long, validation.n_too_long, "texts are cut")
    return RunData(
        corpus=corpus, tokenizer=tokenizer, train=train, validation=validation, labels=stores.train.names, notes=notes
    )


def _cut_notes(settings: Settings, train: int, validation: int, what: str) -> tuple[str, ...]:
    if not train + validation:
        return ()
    return (f"{train} training and {validation} held-out {what}: they have more than l_max = {settings.l_max} tokens",)
