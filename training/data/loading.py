"""The data of a run: corpus, tokenizer, token stores, and the batches for training and for evaluation."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from training.data.batches import Batches, Examples, LabeledTexts, MaskedTokens, NextTokens, Noise, SequencePairs
from training.data.chat import with_markup
from training.data.conversations import NO_TEMPLATE
from training.data.corpora import SOURCES, load_corpus
from training.data.files import read_corpus
from training.data.formats import text_files
from training.data.gato import Modalities, Vocabulary
from training.data.mixtures import Mixture, mixture, weighted, weights_of
from training.data.records import Corpus, DataError, Document, Kind, Labeled, Pair, fingerprint, sampled
from training.data.streams import HUB, streamed
from training.data.token_store import Splits, TokenStore, default_cache_dir, token_stores, tokenize
from training.data.tokenizers import BUILT, Tokenizer, build_tokenizer, load_tokenizer
from training.settings import Settings
from training.tasks import TASKS
from training.tasks.models import model_config

EXAMPLES: dict[str, Callable[[Any, Settings], Examples]] = {
    "d": lambda store, settings: NextTokens(store, l_max=settings.l_max, mode=settings.rows),
    "e": lambda store, s: MaskedTokens(store, l_max=s.l_max, p_mask=s.p_mask, rule=s.masking),
    "ed": lambda store, settings: SequencePairs(store, l_max=settings.l_max),
    "classify": lambda store, settings: LabeledTexts(store, l_max=settings.l_max),
    "gato": lambda store, settings: NextTokens(store, l_max=settings.l_max, mode="packed"),
}
"""Makes the examples of each task from the store of a part and the settings."""
BATCHES: dict[str, Callable[..., Batches]] = {
    "gato": lambda source, settings, tokenizer, **sizes: Modalities(source, _vocabulary(settings, tokenizer), **sizes)
}
"""Makes the batches of the tasks that have more in them than examples."""
TRAINED_ON = 100_000_000  # bytes of the data that a tokenizer is trained on, roughly
OVERLAP = 0.2  # of held-out text with the training text: more is noted
SEPARATOR = "\t"  # of a source and its target, for a decoder that learns pairs, too
COUNTED = 100_000  # tokens that are checked for unknown text


@dataclass(frozen=True, kw_only=True)
class RunData:
    """The data that a run is trained and evaluated on."""

    corpus: Corpus[Any]  # the records, split
    tokenizer: Tokenizer  # tokenizes them
    stores: Splits  # the tokens of each part
    train: Batches  # the training batches
    validation: Batches  # the held-out batches
    labels: tuple[str, ...] = ()  # the names of the classes by index; empty except for classification
    notes: tuple[str, ...] = ()  # notes for the user, such as examples left out or cut

    @property
    def n_tokens(self) -> int:
        """Number of tokens in the training data."""
        return sum(store.n_tokens for store in token_stores(self.stores.train))

    @property
    def fingerprints(self) -> dict[str, str]:
        """Hashes of everything that decides the tokens and the batches."""
        rendered = [getattr(store, "rendered", "") for store in (self.stores.train, self.stores.validation)]
        return {
            "tokenizer": self.tokenizer.fingerprint(),
            "training data": self.train.fingerprint,
            "validation data": self.validation.fingerprint,
            **({"rendering of the conversations": fingerprint(*rendered)} if any(rendered) else {}),
        }


def load_run_data(
    settings: Settings,
    *,
    tokenizer: Tokenizer | None = None,
    cache_dir: Path | None = None,
    progress: Callable[[int, int], None] = lambda n, total: None,
) -> RunData:
    """Read, split, tokenize and check the data of a run; without a `tokenizer`, one is built or loaded. `progress` is
    called with the bytes tokenized since the last call, and roughly the total (0: unknown). Raises DataError.
    """
    files = [weighted(name) for name in settings.data]
    weights = weights_of(files)
    paths = [file.path for file in files]
    corpus = _corpus(settings, paths, TASKS[settings.task].records, cache_dir, counted=bool(weights))
    tasks = _tasks(settings, cache_dir)
    if corpus.kind == "conversations" and settings.task != "d":
        raise DataError(f"--data: expected text for {settings.task}, got conversations; train d on them")
    if tokenizer is None:
        tokenizer = _tokenizer(settings, corpus, tasks)
    if settings.messages_are_markup:
        if corpus.kind != "conversations":
            raise DataError("--messages-are-markup: expected conversations (.jsonl) as data, got text; leave it out")
        tokenizer = with_markup(tokenizer)
    size = corpus.n_bytes
    stores = tokenize(corpus, tokenizer, cache_dir=cache_dir, progress=lambda n: progress(n, size))

    def examples(store: Any) -> Examples:
        return EXAMPLES[settings.task](store, settings)

    train = mixture(stores.train, corpus.files, weights, examples) if weights else examples(stores.train)
    if tasks:
        stored = [task_store(task.train, tokenizer, part="train") for task in tasks]
        parts = [train, *map(examples, stored)]
        train = Mixture(parts, [1.0] * len(parts), too_long="pairs and labeled texts are left out")
    noise = None
    if settings.token_noise or settings.token_deletion:
        probabilities = {"noise": settings.token_noise, "deletion": settings.token_deletion}
        noise = Noise(special=tokenizer.special_tokens, N_V=tokenizer.N_V, **probabilities)
    data = RunData(
        corpus=corpus,
        tokenizer=tokenizer,
        stores=stores,
        train=batches_of(settings, train, tokenizer, noise),
        validation=make_dataset(settings, stores.validation, tokenizer=tokenizer),
        labels=getattr(stores.train, "names", ()),
    )
    of_tasks = (note for task in tasks for note in task.notes())
    return dataclasses.replace(data, notes=(*_notes(data, settings), *of_tasks))


def _vocabulary(settings: Settings, tokenizer: Tokenizer) -> Vocabulary:
    """The vocabulary of all modalities; it reads sizes, and not the lines, which a custom package may have."""
    return Vocabulary(tokenizer, model_config(dataclasses.replace(settings, variant="PAPER"), tokenizer.N_V))


def make_dataset(settings: Settings, store: Any, *, tokenizer: Tokenizer | None = None) -> Batches:
    """Return the batches of a part of the data; gato needs the tokenizer. Raises DataError if no example fits."""
    return batches_of(settings, EXAMPLES[settings.task](store, settings), tokenizer)


def batches_of(settings: Settings, source: Examples, tokenizer: Any, noise: Noise | None = None) -> Batches:
    """Return the batches of a task's examples."""
    sizes = {"batch_size": settings.batch_size, "seed": settings.seed}
    if settings.task in BATCHES:
        return BATCHES[settings.task](source, settings, tokenizer, **sizes)
    return Batches(source, noise=noise, **sizes)


def _corpus(
    settings: Settings, data: Sequence[str], kind: Kind, cache_dir: Path | None, *, counted: bool = False
) -> Corpus[Any]:
    if not data:
        raise DataError("--data: expected the name of a data set, or files, got nothing; give one")

    names: dict[Path, str] = {}

    def file(path: str) -> str | Path:
        """Return the path, or for a data set of the hub, the path of the file that it is streamed to."""
        if not path.startswith(HUB):
            return path
        names[found := streamed(path, kind, cache_dir or default_cache_dir())] = path
        return found

    named = [path for path in data if path in SOURCES and not Path(path).is_file()]
    if not named:
        paths, held_out = (list(map(file, each)) for each in (data, settings.validation_data))
        return read_corpus(paths, kind, validation_paths=held_out, counted=counted, names=names)
    if len(data) > 1 or counted or settings.validation_data:
        raise DataError(
            f"{named[0]} is a named data set with its own held-out part; give it alone, without files or weights"
        )
    if SOURCES[named[0]].kind != kind:
        fitting = ", ".join(name for name, source in SOURCES.items() if source.kind == kind)
        raise DataError(
            f"{named[0]} holds {SOURCES[named[0]].kind}, but {settings.task} trains on {kind}; "
            f"choose {fitting}, or files"
        )
    return load_corpus(named[0], cache_dir=cache_dir)


def _tasks(settings: Settings, cache_dir: Path | None) -> list[Corpus[Pair]]:
    """Return the pairs and labeled texts that a decoder learns in addition to its text."""
    kinds: dict[Kind, tuple[str, ...]] = {"pairs": settings.pairs, "labeled": settings.labeled}
    given: dict[Kind, tuple[str, ...]] = {kind: names for kind, names in kinds.items() if names}
    if given and settings.rows != "packed":
        raise DataError(f"--rows: expected packed with --{next(iter(given))}, got {settings.rows}; leave it out")
    plain = dataclasses.replace(settings, validation_data=())
    return [as_pairs(_corpus(plain, names, kind, cache_dir)) for kind, names in given.items()]


def as_pairs(corpus: Corpus[Any]) -> Corpus[Pair]:
    """Return a corpus with every labeled text as a pair of the text and its label; pairs stay as they are."""

    def pair(record: Pair | Labeled) -> Pair:
        return Pair(record.text, record.label, record.where) if isinstance(record, Labeled) else record

    return dataclasses.replace(corpus, **{part: [*map(pair, records)] for part, records in corpus.parts().items()})


def task_store(records: Iterable[Pair], tokenizer: Tokenizer, *, part: str) -> TokenStore:
    """Return pairs, tokenized separately, as a store of sequences for a decoder: bos, source, TAB, target, eos. The
    loss is on target and eos, so `generate.py RUN --prompt "SOURCE<TAB>"` answers. Raises DataError for a source with a
    TAB.
    """
    sources, targets = [], []
    for record in records:
        if SEPARATOR in record.source:
            raise DataError(f"{record.where}: expected a source without TAB, which separates it from its target")
        sources.append(record.source + SEPARATOR)
        targets.append(record.target)
    bos, eos = tokenizer.bos_token, tokenizer.eos_token
    pairs = list(zip(tokenizer.encode_batch(sources), tokenizer.encode_batch(targets), strict=True))
    tokens = np.array([token for a, b in pairs for token in (bos, *a, *b, eos)], np.int32)
    answers = np.array([answer for a, b in pairs for answer in (*[False] * (1 + len(a)), *[True] * (len(b) + 1))], bool)
    offsets = np.cumsum([0, *(len(a) + len(b) + 2 for a, b in pairs)], dtype=np.int64)
    own = fingerprint(tokenizer.N_V, tokens.tobytes(), offsets.tobytes())
    return TokenStore(tokens, offsets, tokenizer.N_V, 0, own, part, exact=False, answers=answers)


def _tokenizer(settings: Settings, corpus: Corpus[Any], tasks: Sequence[Corpus[Pair]]) -> Tokenizer:
    kind = settings.tokenizer
    if kind not in BUILT:
        return load_tokenizer(kind)
    if corpus.kind == "conversations":
        raise DataError(NO_TEMPLATE)
    corpora = (corpus, *tasks)
    parts: list[Iterable[Any]] = [one.train for one in corpora]
    if kind in ("words", "bpe"):
        size = sum(one.n_bytes for one in corpora)
        parts = [sampled(part, TRAINED_ON / max(size, 1)) for part in parts]
    if kind == "characters":
        parts += [part for one in corpora for part in (one.validation, one.test)]
    parts += [[Document(SEPARATOR)]] if tasks else []
    fields = (field for part in parts for record in part for field in record._asdict().items())
    texts = (text for name, text in fields if name not in ("label", "where"))
    return build_tokenizer(kind, texts, N_V=settings.N_V)


def _notes(data: RunData, settings: Settings) -> list[str]:
    corpus, stores, train, validation = data.corpus, data.stores, data.train.source, data.validation.source
    notes = [
        f"{path} has {len(found)} text files, read in order of their names"
        for path in (weighted(name).path for name in (*settings.data, *settings.validation_data))
        if corpus.kind == "text" and path not in SOURCES and (found := text_files(Path(path)))
    ]
    sizes = [_size(stores.train), _size(stores.validation)]
    share = sizes[1] / sum(sizes)
    if corpus.held_out and abs(share - corpus.held_out) > corpus.held_out / 10:
        notes.append(
            f"{100 * share:.1f} % of the data are held out instead of {100 * corpus.held_out:.1f} %: the documents are "
            "too few or too uneven in size; choose them yourself with --validation-data"
        )
    notes += token_stores(stores.train)[0].notes
    if (overlap := token_stores(stores.validation)[0].overlap or 0) > OVERLAP:
        notes.append(
            f"{100 * overlap:.0f} % of the held-out text is in the training text, too, so figures on it show what the "
            "model remembers; choose other text with --validation-data"
        )
    if train.n_too_long + validation.n_too_long:
        of_each = f"{train.n_too_long} training and {validation.n_too_long} held-out"
        notes.append(f"{of_each} {train.too_long}: they have more than l_max = {settings.l_max} tokens")
    if any(data.tokenizer.are_mostly_unknown(store.tokens[:COUNTED].tolist()) for store in token_stores(stores.train)):
        notes.append("more than half of the tokens of the training data are unknown to the tokenizer")
    return notes


def _size(store: Any) -> int:
    """Return the size of a part: the bytes of text, or the number of records."""
    return store.n_bytes if isinstance(store, TokenStore) else len(store)
