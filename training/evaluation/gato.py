"""Evaluation of Gato: on held-out text, and on digits that it names and draws."""

import jax
import numpy as np

from training.data.batches import Batches, NextTokens
from training.data.gato import digits
from training.data.loading import RunData
from training.evaluation.held_out import evaluate_run
from training.generation.gato import Gato, of_text
from training.runs.directory import Description, Run

DRAWN, TAU = 5, 0.5  # drawings of each digit, and their temperature
AT_ONCE = 120  # images in a batch
INK = " .:*#"  # of shades, from white to black


def figures(
    run: Run, description: Description, data: RunData, part: str
) -> tuple[dict[str, dict[str, float]], list[str]]:
    """Return figures by method, this model first (bits per byte of the text, and accuracy on the digits), and a drawing
    of each digit.
    """
    from sklearn.linear_model import LogisticRegression  # as slow to import as to fit

    gato, train, held_out = Gato(run), digits.load("train"), digits.load("validation")
    simple = LogisticRegression(max_iter=2000).fit(train.shades.reshape(len(train.labels), -1) / 16, train.labels)
    truth, pixels = [digits.NAMES[label] for label in held_out.labels], held_out.pixels
    named = [name for i in range(0, len(pixels), AT_ONCE) for name in gato.names(list(pixels[i : i + AT_ONCE]))]
    asked = [name for name in digits.NAMES for _ in range(DRAWN)]
    drawn = gato.drawings(asked, n=digits.SIDE**2, levels=digits.SHADES, tau=TAU, key=jax.random.key(0))
    recognized = simple.predict(drawn / 16).reshape(10, -1) == np.arange(10)[:, None]
    theirs = float(simple.score(held_out.shades.reshape(len(truth), -1) / 16, held_out.labels))
    accuracy = float(np.mean([a == b for a, b in zip(named, truth, strict=True)]))
    of_digits = {"accuracy": accuracy, "recognized": float(recognized.mean())}
    rows = {"this model": bits_per_byte(run, description, data, part) | of_digits}
    samples = [printed(drawn[::DRAWN].reshape(10, digits.SIDE, digits.SIDE))]
    return rows | {"logistic regression": {"accuracy": theirs}}, samples


def printed(drawings: np.ndarray) -> str:
    """Return drawings [n, rows, columns] side by side as text, one character a pixel."""
    ink = np.array(list(INK))[drawings * len(INK) // digits.SHADES]
    lines = ["  ".join("".join(drawing[row]) for drawing in ink).rstrip() for row in range(digits.SIDE)]
    return "drawings of zero to nine:\n" + "\n".join(lines)


def bits_per_byte(run: Run, description: Description, data: RunData, part: str) -> dict[str, float]:
    """Return the bits per byte of held-out text, or its loss if the tokens do not decode to the exact text."""
    settings, store = description.settings, getattr(data.stores, part)
    texts = NextTokens(store, l_max=settings.l_max, mode="packed")
    found = evaluate_run(of_text(run), settings, Batches(texts, batch_size=settings.batch_size, seed=settings.seed))
    name = "bits_per_byte" if "bits_per_byte" in found else "loss"
    return {name: found[name]}
