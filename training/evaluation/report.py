"""Evaluation of a trained run on held-out data, compared with simpler methods.

| task | figures | compared with |
|---|---|---|
| `d` | loss, perplexity, bits per byte | gzip, bzip2, xz, and an n-gram model |
| `e` | loss, perplexity, accuracy at masked tokens | token frequencies |
| `ed` | exact match, BLEU (needs sacrebleu) | |
| `gato` | bits per byte of text, accuracy and drawings of digits | logistic regression |
| `classify` | accuracy, precision, recall, F1 | TF-IDF and logistic regression (needs scikit-learn) |
"""

import dataclasses
import functools
import importlib.util
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from training.data.loading import RunData, make_dataset
from training.data.overlap import WIDTH
from training.data.records import DataError, Document, Labeled, Pair, joined_bytes
from training.data.token_store import token_stores
from training.evaluation import gato
from training.evaluation.baselines import compressed_bits_per_byte, ngram_score
from training.evaluation.held_out import Progress, evaluate_run
from training.generation import Generator
from training.generation.buckets import padded_rows
from training.generation.gato import of_text
from training.generation.scoring import classify
from training.generation.text import TAU, TOP_P, Options, answerer_for
from training.runs.directory import Description, Run
from training.settings import Settings

PARTS = ("validation", "test")
THIS = "this model"
SHOWN = 8  # examples
AT_ONCE = 64  # examples in a batch
SAMPLED = 60  # tokens
LIMITED = ("ed", "classify")  # tasks that --limit applies to

Figures = dict[str, float]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The results of an evaluation."""

    rows: dict[str, Figures]  # figures by method, this model first
    samples: list[str] = dataclasses.field(default_factory=list)  # examples of the model's output, and remarks
    missing: list[str] = dataclasses.field(default_factory=list)  # packages to install for further methods

    def has(self, module: str, package: str) -> bool:
        """Return whether a module can be imported; if it cannot, record its package in `missing`."""
        if importlib.util.find_spec(module) is None:
            self.missing.append(package)
            return False
        return True


def compare(
    run: Run,
    description: Description,
    data: RunData,
    part: str,
    *,
    limit: int = 0,
    progress: Progress = lambda n, total: None,
) -> Comparison:
    """Evaluate a run on one of `PARTS`, at most `limit` examples of some tasks (0: all). Raises DataError."""
    if limit and run.task not in LIMITED:
        raise DataError(f"--limit: expected a run of {' or '.join(LIMITED)}, got one of {run.task}; leave it out")
    if part not in PARTS:
        raise DataError(f"there is no part {part!r}; choose one of {', '.join(PARTS)}")
    if not len(getattr(data.stores, part)):
        raise DataError(f"{data.corpus.name} has no {part} part; choose another of {', '.join(PARTS)}")
    chosen = itertools.islice(getattr(data.corpus, part), limit or None)
    found = EVALUATIONS[run.task].compare(run, description, data, part, chosen, progress)
    found.samples.extend(_overlap(getattr(data.stores, part)))
    return found


def _decoder(
    run: Run, description: Description, data: RunData, part: str, _: Iterable[Document], progress: Progress
) -> Comparison:
    store, settings = getattr(data.stores, part), description.settings
    found = Comparison({THIS: evaluate_run(run, settings, make_dataset(settings, store), progress)})
    if store.answers is not None:
        found.samples.append("the figures are for the answers alone, given the messages before them")
        return found
    score = ngram_score(data.stores.train, store)
    learned = f"{len(data.stores.train.tokens):,} tokens of the training data of {data.corpus.name}"
    found.samples.append(f"the 3-gram model learned from {learned}")
    found.rows["3-gram, Witten-Bell"] = score if store.exact else {"perplexity": score["perplexity"]}
    if not store.exact:
        found.samples.append("no bits per byte: this run's tokenizer does not reproduce the text")
        return found
    for name, bits in compressed_bits_per_byte(joined_bytes(getattr(data.corpus, part))).items():
        found.rows[name] = {"bits_per_byte": bits}
    return found


def _encoder(
    run: Run, description: Description, data: RunData, part: str, _: Iterable[Document], progress: Progress
) -> Comparison:
    held_out = make_dataset(description.settings, getattr(data.stores, part))
    found = Comparison({THIS: evaluate_run(run, description.settings, held_out, progress)})
    counts = np.bincount(data.stores.train.tokens, minlength=run.config.N_V) + 1.0
    nats = -np.log(counts / counts.sum())
    masked = np.concatenate([batch["x"][batch["loss_mask"]] for batch in held_out.evaluation_batches()])
    loss = float(nats[masked].mean())
    accuracy = float(np.mean(masked == counts.argmax()))
    found.rows["token frequencies"] = {"loss": loss, "perplexity": math.exp(loss), "accuracy": accuracy}
    return found


def _translator(
    run: Run, description: Description, data: RunData, part: str, chosen: Iterable[Pair], progress: Progress
) -> Comparison:
    pairs, room = list(chosen), run.config.l_max - 2  # bos and eos
    fitting = [i for i, pair in enumerate(pairs) if len(run.tokenizer.encode(pair.source)) <= room]
    answerer = answerer_for(run, Options())
    outputs: list[str | None] = [None] * len(pairs)  # None: the source does not fit
    for first in range(0, len(fitting), AT_ONCE):
        chunk = fitting[first : first + AT_ONCE]
        answered = answerer.answers([pairs[i].source for i in chunk], first=first + 1)
        for i, answers in zip(chunk, answered, strict=True):
            outputs[i] = answers[0]["text"]
        progress(len(chunk), len(fitting))
    if not fitting:
        raise DataError(f"none of the {part} pairs of {data.corpus.name} fits into l_max = {run.config.l_max} tokens")
    targets = [pair.target for pair in pairs]
    exact = float(np.mean([a == b for a, b in zip(outputs, targets, strict=True)]))
    found = Comparison({THIS: {"pairs": len(pairs), "exact_match": exact}})
    if len(fitting) < len(pairs):
        found.samples.append(
            f"{len(pairs) - len(fitting)} of the {len(pairs)} sources have more than l_max = {run.config.l_max} "
            "tokens: they are not translated, and count as wrong"
        )
    if found.has("sacrebleu", "sacrebleu"):
        found.rows[THIS] |= bleu([output or "" for output in outputs], targets)
    for pair, output in [(pairs[i], outputs[i]) for i in fitting[:SHOWN]]:
        found.samples.append(f"{pair.source} → {output}" + ("" if output == pair.target else f"   (not {pair.target})"))
    return found


def bleu(outputs: Sequence[str], targets: Sequence[str]) -> Figures:
    """Return sacrebleu's corpus BLEU (of references with four words or more) and chrF, between 0 and 100."""
    import sacrebleu

    scores = {"chrF": sacrebleu.corpus_chrf(list(outputs), [list(targets)]).score}
    if any(len(target.split()) >= 4 for target in targets):
        scores = {"BLEU": sacrebleu.corpus_bleu(list(outputs), [list(targets)]).score} | scores
    return scores


def _classifier(
    run: Run, description: Description, data: RunData, part: str, chosen: Iterable[Labeled], progress: Progress
) -> Comparison:
    labels, chosen = run.labels, list(chosen)
    unknown = next((record for record in chosen if record.label not in labels), None)
    if unknown is not None:
        raise DataError(
            f"{unknown.where}: label: expected one of the run's classes, {', '.join(labels)}, got {unknown.label!r}"
        )
    store = data.stores.train
    counts = dict(zip(store.names, np.bincount(store.labels, minlength=len(store.names)).tolist(), strict=True))
    rarest = int(np.argmin([counts.get(label, 0) for label in labels]))
    truth = np.array([labels.index(record.label) for record in chosen])
    predicted = np.zeros(len(chosen), np.int64)
    for i in range(0, len(chosen), AT_ONCE):
        predicted[i : i + AT_ONCE] = _classes(run, chosen[i : i + AT_ONCE])
        progress(len(chosen[i : i + AT_ONCE]), len(chosen))
    measure = functools.partial(classification_figures, truth, positive=rarest, classes=len(labels))
    found = Comparison({THIS: measure(predicted)})
    if found.has("sklearn", "scikit-learn"):
        try:
            guesses = _by_tfidf(list(data.corpus.train), [record.text for record in chosen])
            numbers = np.array([labels.index(guess) if guess in labels else len(labels) for guess in guesses])
            found.rows["TF-IDF and logistic regression"] = measure(numbers)
        except DataError as error:
            found.samples.append(f"TF-IDF and logistic regression are left out: {error}")
    for record, guess in itertools.islice(zip(chosen, predicted, strict=True), SHOWN):
        found.samples.append(
            f"{labels[guess]}: {record.text[:80]}" + ("" if labels[guess] == record.label else "   (wrong)")
        )
    return found


def _by_tfidf(train: Sequence[Labeled], texts: Sequence[str]) -> list[str]:
    """Return the labels by logistic regression of TF-IDF features, or raise DataError if `train` has no words."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    model = make_pipeline(TfidfVectorizer(), LogisticRegression(max_iter=1000))
    try:
        model.fit([record.text for record in train], [record.label for record in train])
    except ValueError as error:
        if "empty vocabulary" not in str(error):
            raise
        raise DataError("the training texts have no words of two letters or more") from None
    return [str(label) for label in model.predict(list(texts))]


def _classes(run: Run, records: list[Labeled]) -> np.ndarray:
    """Return the likeliest class of each text, cut to l_max as in training."""
    tokenizer, l_max = run.tokenizer, run.config.l_max
    rows = [[tokenizer.bos_token, *tokenizer.encode(r.text)[: l_max - 2], tokenizer.eos_token] for r in records]
    (x, lengths), config = padded_rows(rows), run.config
    return np.asarray(classify(run.theta, x, lengths=lengths, config=config)).argmax(axis=1)


def classification_figures(truth: np.ndarray, predicted: np.ndarray, *, positive: int, classes: int) -> Figures:
    """Return accuracy, precision, recall and F1: for the `positive` class of two, or the mean over more classes."""
    of = np.array([positive] if classes == 2 else range(classes))[:, None]
    masks = (truth == of) & (predicted == of), predicted == of, truth == of
    hits, found, actual = (mask.sum(axis=1) for mask in masks)
    scores = hits / np.maximum(found, 1), hits / np.maximum(actual, 1), 2 * hits / np.maximum(found + actual, 1)
    precision, recall, f1 = np.stack(scores, axis=1).mean(axis=0)
    accuracy = np.mean(truth == predicted)
    return {"accuracy": float(accuracy), "precision": float(precision), "recall": float(recall), "F1": float(f1)}


def _continuation(run: Run) -> str:
    x, ends = np.array([[run.tokenizer.bos_token]]), run.tokenizer.end_tokens
    options = {"l_gen": min(SAMPLED, run.config.l_max), "tau": TAU, "top_p": TOP_P, "eos": ends or None}
    generator = Generator(run.theta, run.config)
    tokens = generator.generate(x, lengths=np.array([1]), key=jax.random.key(0), **options)[0].tolist()
    ended = next((i for i, token in enumerate(tokens) if token in ends), len(tokens))
    return f"a sample (Algorithm 14, temperature {TAU}, top-p {TOP_P}):\n{run.tokenizer.decode(tokens[:ended])}"


class Evaluation(NamedTuple):
    """Evaluation of the runs of a task."""

    compare: Callable[..., Comparison]  # of run, description, data, part, its chosen records, and a `Progress`
    sample: Callable[[Run], str] = lambda run: ""  # returns an example of the model's output, if any


EVALUATIONS: dict[str, Evaluation] = {
    "d": Evaluation(_decoder, _continuation),
    "e": Evaluation(_encoder),
    "ed": Evaluation(_translator),
    "classify": Evaluation(_classifier),
    "gato": Evaluation(lambda *of: Comparison(*gato.figures(*of[:4])), lambda run: _continuation(of_text(run))),
}
"""The evaluation of each task."""


def summary(settings: Settings, data: RunData, results: dict[str, float]) -> Iterator[str]:
    """Yield lines that report the results on all held-out data."""
    of = "answers" if data.corpus.kind == "conversations" else "data"
    yield (
        f"held-out {of}: loss {results['loss']:.4f} nats per token, perplexity {results['perplexity']:.2f}, "
        f"accuracy {100 * results['accuracy']:.2f} %"
    )
    if "bits_per_byte" in results:
        held_out = joined_bytes(data.corpus.validation)
        yield f"bits per byte of the {len(held_out)} held-out bytes:"
        for name, bits in {THIS: results["bits_per_byte"], **compressed_bits_per_byte(held_out)}.items():
            yield f"    {name:<12}{bits:.3f}"
    yield from _overlap(data.stores.validation)


def _overlap(store: Any) -> Iterator[str]:
    """Yield a line that reports the overlap of held-out data with the training data, if it was measured."""
    share = token_stores(store)[0].overlap
    if share is not None:
        yield f"{100 * share:.3g} % of the held-out windows of {WIDTH} characters are in the training data, too"


def sample(run: Run) -> str:
    """Return a text that a run generates, or "" for the tasks that generate none."""
    return EVALUATIONS[run.task].sample(run)
