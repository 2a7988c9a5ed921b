"""Compute the page's content: one pass over the text, what its values show, and what the parameters show."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from algorithms import MHAttentionParams, d_hidden_state, e_encoding, e_hidden_state, e_transformer, ed_hidden_state
from algorithms.inside import record
from algorithms.lines import Attention
from algorithms.model.theta import every_layer
from training.data.chat import converser
from training.generation import Translator
from training.generation.gato import of_text
from training.generation.text import MASK, masked
from training.interpretability import attribution, circuits, lens, patching, scores
from training.interpretability.page.look import (
    AttentionMaps,
    Circuits,
    LogitParts,
    Look,
    PageError,
    PatchEffects,
    Prediction,
    readable,
    readable_tokens,
    token_text,
)
from training.runs.directory import Run
from training.tasks.classify import ClassifierParams, class_probabilities

MOST_WEIGHTS = 8_000_000  # attention weights that certainly fit in a page of 5 MB, not counting masked ones
K = 5  # likeliest tokens shown
SEQUENCES, REPEATED = 4, 32
MOST_HEADS = 600  # whose pairs fit in a page
MOST_OPERATIONS = 1e13  # floating-point operations for patching each layer, head and token in a separate run


class _Pass(NamedTuple):
    """The result of one pass over a text."""

    texts: dict[str, np.ndarray]
    attention: list[AttentionMaps]
    prediction: Prediction | str
    written: LogitParts | str


def look(run: Run, prompt: str, *, against: str | None = None, chat: bool = False, name: str = "the model") -> Look:
    """Look inside a model, `name` on the page, as it reads a prompt; with `against`, another prompt with equally many
    tokens, find what makes the answers differ; with `chat`, the prompts are a user's messages. Raises PageError if a
    prompt is empty or too long, or the two differ in length or not at all.
    """
    run = of_text(run)
    config, tokenizer = run.config, run.tokenizer
    if not any(map(_has_attention, config.variant.attentions)):
        kinds = " and ".join(dict.fromkeys(type(line).__name__ for line in config.variant.attentions))
        raise PageError(f"model: expected one with an attention in some layer, whose weights are shown, got {kinds}")
    x = _tokens(run, "prompt", prompt, chat=chat)
    other = None if against is None else _tokens(run, "against", against, chat=chat)
    if other is not None:
        _check_pair(run, x, other)
    if run.task != "ed":  # checked there when the length of the answer is known
        _check_count(config.L * config.H * len(x) ** 2 // (2 if run.task == "d" else 1), len(x))
    passed = {"d": _decoder, "e": _encoder, "ed": _encoder_decoder, "classify": _classifier}[run.task](run, x)
    words = {}
    if isinstance(passed.prediction, Prediction):
        of_labels = run.task == "classify"
        words = {
            int(v): run.labels[v] if of_labels else readable(token_text(tokenizer, int(v)))
            for v in np.unique(passed.prediction.tokens)
        }
    return Look(
        name,
        _facts(run),
        {of: readable_tokens(tokenizer, tokens) for of, tokens in passed.texts.items()},
        words,
        passed.attention,
        passed.prediction,
        passed.written,
        None if other is None else patched(run, x, other),
        circuits_of(run),
    )


def _tokens(run: Run, argument: str, text: str, *, chat: bool) -> np.ndarray:
    """Return the tokens of a prompt as the model reads them."""
    tokenizer, l_max = run.tokenizer, run.config.l_max
    if not text:
        raise PageError(f"{argument}: expected some text, got none")
    if chat:
        if run.task != "d":
            raise PageError(f"chat: expected a decoder, got a run of {run.task}, which cannot converse")
        tokens = converser(tokenizer)([{"role": "user", "content": text}])
    else:
        encoded = masked(text, tokenizer) if run.task == "e" else tokenizer.encode(text)
        if not encoded:
            raise PageError(f"{argument}: expected some text, got {text!r}, for which the tokenizer gives no tokens")
        tokens = tokenizer.framed(encoded, ends=run.task != "d")
    if len(tokens) > l_max:
        raise PageError(f"{argument}: expected at most l_max = {l_max} tokens, got {len(tokens)}; shorten it")
    return np.array(tokens)


def _check_pair(run: Run, x: np.ndarray, other: np.ndarray) -> None:
    if len(x) != len(other):
        both = (" | ".join(readable_tokens(run.tokenizer, tokens)) for tokens in (x, other))
        raise PageError(
            f"against: expected as many tokens as the prompt, {len(x)}, got {len(other)}; replace words only by words "
            f"with as many tokens: {' against '.join(both)}"
        )
    if (x == other).all():
        raise PageError("against: expected a text other than the prompt, got the same tokens; change a word")


def _check_count(n: int, l: int) -> None:
    if n > MOST_WEIGHTS:
        most = int(l * (MOST_WEIGHTS / n) ** 0.5)
        raise PageError(
            f"prompt: expected at most {most} tokens, so that all attention weights fit in a page of 5 MB, got {l}; "
            "shorten it"
        )


def _facts(run: Run) -> list[str]:
    config = run.config
    kind = {"d": "decoder", "e": "encoder", "ed": "encoder-decoder", "classify": "classifier"}[run.task]
    layers = f"{config.L_enc} + {config.L_dec}" if run.task == "ed" else f"{config.L}"
    n = sum(leaf.size for leaf in jax.tree.leaves(run.theta))
    return [
        kind,
        f"{layers} layers",
        f"{config.H} heads",
        f"d_e = {config.d_e:,}",
        f"vocabulary of {config.N_V:,}",
        f"{n / 1e6:,.1f} million parameters" if n >= 1e5 else f"{n:,} parameters",
    ]


def _decoder(run: Run, x: np.ndarray) -> _Pass:
    theta, f = run.theta, d_hidden_state
    _, seen = record(f, "A", *attribution.READS)(x, theta)
    X = jnp.concatenate([seen["X@3"][None], lens.after_layers(seen["X@8"], theta)])
    rows = ["embedding", *(f"layer {l}" for l in range(run.config.L))]
    prediction = _by_layer(X, theta, x, "prompt", rows)
    answers = jnp.asarray(prediction.tokens[-1, :, 0])
    try:
        written: LogitParts | str = _written({name: seen[name] for name in attribution.READS}, theta, answers)
    except ValueError as error:
        written = f"The parts of this model do not add up to its logits ({error})."
    return _Pass({"prompt": x}, _own_attention(run, seen), prediction, written)


def _own_attention(run: Run, seen: Any) -> list[AttentionMaps]:
    return [AttentionMaps.recorded("Attention", "prompt", "prompt", _of_layers(run, seen["A"]))]


def _has_attention(mixer: Any) -> bool:
    return any(isinstance(part, Attention) for part, _ in mixer.parts())


def _of_layers(run: Run, values: jax.Array) -> jax.Array:
    """Return what was recorded of attentions with a row for every layer, of 0 where the mixer is none."""
    config = run.config
    if len(values) == config.L:
        return values
    layers = [l for l in range(config.L) if _has_attention(config.variant.attention_of(l))]
    return jnp.zeros((config.L, *values.shape[1:]), values.dtype).at[np.array(layers)].set(values)


def _by_layer(X: Any, theta: Any, x: np.ndarray, of: str, rows: list[str]) -> Prediction:
    """Return the logit lens, and each row's probability of what the last row predicts."""

    def log_p(X, theta):
        return jax.nn.log_softmax(lens.unembedded(X, theta).T.astype(jnp.float32))

    @jax.jit
    def every(X, x, theta):
        last = log_p(X[-1], theta)
        answers = last.argmax(1)

        def of_row(X):
            row = log_p(X, theta)
            p, tokens = jax.lax.top_k(row, min(K, row.shape[1]))
            return tokens, jnp.exp(p), jnp.exp(jnp.take_along_axis(row, answers[:, None], 1)[:, 0])

        follows = jnp.exp(jnp.take_along_axis(last[:-1], x[1:, None], 1)[:, 0])
        return (*jax.lax.map(of_row, X), follows)

    tokens, p, final, follows = map(np.asarray, every(X, x, theta))
    return Prediction(of, rows, tokens, p, final, np.append(follows, np.nan), "")


def _written(seen: dict[str, jax.Array], theta: Any, answers: jax.Array) -> LogitParts:
    """Return for each column the parts of its own answer's logit, relative to the mean logit."""
    N_V = theta.W_e.shape[1]

    def of_column(seen, answer, theta):
        weights = jnp.zeros(N_V, theta.W_e.dtype).at[answer].set(1) - 1 / N_V
        parts = attribution.attribution(seen, theta, weights)
        return parts.heads, parts.mlp, parts.embedding, parts.b_o.sum() + parts.constant

    columns = {name: jnp.moveaxis(value, -1, 0) for name, value in seen.items()}

    @jax.jit
    def every(columns, answers, theta):
        return jax.lax.map(lambda of: of_column(of[0], of[1], theta), (columns, answers), batch_size=16)

    found = every(columns, answers, theta)
    heads, mlp, embedding, rest = (np.moveaxis(np.asarray(part, np.float32), 0, -1) for part in found)
    return LogitParts(heads, mlp, embedding, rest)


NORM_LAST = "Not available for this model: it normalizes after each sum, so no head has a separate part in the logits."


def _encoder(run: Run, x: np.ndarray) -> _Pass:
    theta, variant = run.theta, run.theta.variant
    f: Any = e_transformer if variant.head else e_encoding
    P, seen = record(f, "A")(x, theta)
    if not variant.head:
        return _Pass(
            {"prompt": x}, _own_attention(run, seen), "This encoder has no head that predicts tokens.", NORM_LAST
        )
    note = (
        "An encoder predicts the token at each position, or the one that [MASK] hides there, from its last layer "
        "alone: lines 10 and 11 of Algorithm 9 read no other."
    )
    return _Pass({"prompt": x}, _own_attention(run, seen), _output(np.asarray(P, np.float32), note), NORM_LAST)


def _output(P: np.ndarray, note: str) -> Prediction:
    """Return the predictions at each column of P, for a model without a lens."""
    likeliest = np.argsort(-P, axis=0, kind="stable")[:K].T
    p = np.take_along_axis(P.T, likeliest, 1)[None]
    return Prediction("prompt", ["output"], likeliest[None], p, p[..., 0], np.full(P.shape[1], np.nan), note)


def _classifier(run: Run, x: np.ndarray) -> _Pass:
    assert isinstance(run.theta, ClassifierParams)
    p, seen = record(class_probabilities, "A")(x, run.theta)
    P = np.repeat(np.asarray(p, np.float32)[:, None], len(x), axis=1)
    note = "A classifier predicts one class for the whole text, from the encoding of its first token."
    return _Pass({"prompt": x}, _own_attention(run, seen), _output(P, note), NORM_LAST)


def _encoder_decoder(run: Run, z: np.ndarray) -> _Pass:
    theta, tokenizer, config = run.theta, run.tokenizer, run.config
    translator = Translator(theta, config, bos=tokenizer.bos_token, eos=tokenizer.eos_token)
    tokens, counts, _ = translator.translate(z[None], lengths=np.array([len(z)]), l_max=config.l_max)
    x = np.asarray(tokens)[0, : max(1, int(counts[0]) - 1)]  # without eos, since nothing is predicted after it
    H, n, m = config.H, len(z), len(x)
    _check_count(config.L_enc * H * n * n + config.L_dec * H * (m * m // 2 + m * n), n)

    f = ed_hidden_state
    _, seen = record(f, "A/5", "A/14", "A/16", "X@19")(z, x, theta)
    blocks = [
        AttentionMaps.recorded("Encoder (line 5)", "prompt", "prompt", seen["A/5"]),
        AttentionMaps.recorded("Decoder (line 14)", "answer", "answer", seen["A/14"]),
        AttentionMaps.recorded("Decoder to encoder (line 16)", "answer", "prompt", seen["A/16"]),
    ]
    rows = [f"layer {l}" for l in range(config.L_dec)]
    prediction = _by_layer(seen["X@19"], theta, x, "answer", rows)
    note = "The answer is the model's own, decoded greedily; each of its tokens predicts the next one."
    return _Pass({"prompt": z, "answer": x}, blocks, prediction._replace(note=note), NORM_LAST)


def patched(run: Run, x: np.ndarray, other: np.ndarray) -> PatchEffects | str:
    """Patch values of x into the run of the other prompt: the residual stream by layer and token, and each head."""
    if run.task == "e" and run.config.variant.head:
        mask = run.tokenizer.mask_token
        both = (x == mask) & (other == mask)
        if not both.any():
            return f"Patching measures what an encoder predicts for a {MASK}; both prompts need one at the same token."
        column = int(np.argmax(both))
    elif run.task == "d":
        column = len(x) - 1
    else:
        return "Patching is shown for decoders, and for encoders that predict tokens."
    f = d_hidden_state if run.task == "d" else e_hidden_state

    def logits(x, theta):
        X = f(x, theta)[:, column : column + 1]
        return theta.variant.unembedding.logits(X, theta)[:, 0].astype(jnp.float32)

    answer, alternative = (int(logits(tokens, run.theta).argmax()) for tokens in (x, other))

    def score(x, theta):
        log_p = jax.nn.log_softmax(logits(x, theta))
        return log_p[answer] - (0 if answer == alternative else log_p[alternative])

    ends = float(score(x, run.theta)), float(score(other, run.theta))
    if abs(ends[0] - ends[1]) < 1e-6:
        return "The model gives both prompts the same answer with the same probability, so there is nothing to restore."
    config = run.config
    n = config.shared_layers * sum(leaf.size for leaf in jax.tree.leaves(run.theta.layers))
    is_estimate = 2.0 * n * len(x) * (config.L * len(x) + config.L * config.H) > MOST_OPERATIONS
    source, target = (jnp.asarray(x), run.theta), (jnp.asarray(other), run.theta)
    if is_estimate:
        of_tokens = ends[1] + patching.attribution_patching(score, "X@8", source, target).sum(1)
        of_heads = ends[1] + patching.attribution_patching(score, "Y@2", source, target).sum((2, 3))
    else:
        of_tokens = patching.activation_patching(score, "X@8", source, target)
        of_heads = patching.activation_patching(score, "Y@2", source, target, by="head")
    of_tokens, of_heads = ((np.asarray(found) - ends[1]) / (ends[0] - ends[1]) for found in (of_tokens, of_heads))
    of_heads = np.asarray(_of_layers(run, jnp.asarray(of_heads)))
    words = [f"“{readable(token_text(run.tokenizer, token))}”" for token in (answer, alternative)]
    said = f"log P({words[0]})" + f" − log P({words[1]})" * (answer != alternative)
    return PatchEffects(readable_tokens(run.tokenizer, other), of_tokens, of_heads, said, ends, is_estimate)


def circuits_of(run: Run) -> Circuits | str:
    """Return the scores of all heads and the composition of all pairs, or a sentence that says why there are none."""
    if run.task == "ed":
        return "Head scores are shown for decoders and encoders; an encoder-decoder has three kinds of heads."
    n = min(REPEATED, run.config.l_max // 2)
    if n < 2:
        return f"Head scores need a context of at least 4 tokens; the model reads {run.config.l_max}."
    theta: Any = run.theta.encoder if run.task == "classify" else run.theta
    usual = np.setdiff1d(np.arange(run.config.N_V), run.tokenizer.special_tokens)
    x = jnp.asarray(np.tile(np.random.default_rng(0).choice(usual, (SEQUENCES, n)), 2))
    f: Any = d_hidden_state if run.task == "d" else e_encoding
    A = _of_layers(run, record(f, "A")(x, theta)[1]["A"])
    found = {
        "previous token": scores.previous_token_scores(A),
        "duplicate token": scores.duplicate_token_scores(A, x),
        "induction": scores.induction_scores(A, x),
    }
    try:
        W = every_layer(theta.layers, theta.variant, lambda W: W.attention)
    except ValueError:
        composition, note = {}, "Copying and composition are omitted: the layers' mixers have different parameters."
    else:
        if run.task == "d" and isinstance(W, MHAttentionParams):
            found["copying"] = circuits.copying_scores(theta)
        composition, note = _composition(W)
    return Circuits({name: np.asarray(a, np.float32) for name, a in found.items()}, composition, note)


def _composition(W: Any) -> tuple[dict[str, np.ndarray], str]:
    if not isinstance(W, MHAttentionParams):
        return {}, f"Copying and composition are omitted: the attention has parameters of its own, {type(W).__name__}."
    L, H = W.heads.W_q.shape[:2]
    if L < 2:
        return {}, "A model with one layer has no heads that compose."
    if L * H > MOST_HEADS:
        return {}, f"Composition is omitted: {L * H:,} heads have more pairs than fit in a page."
    try:
        found = circuits.composition_scores(W)
    except ValueError as error:
        return {}, f"Composition is omitted: the attention scores of this model are not bilinear ({error})."
    return {name: np.asarray(a, np.float32) for name, a in found.items()}, ""
