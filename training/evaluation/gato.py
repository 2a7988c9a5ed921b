"""Evaluation of Gato: on held-out text, on digits that it names and draws, and on a pendulum that it steers."""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from training.data.batches import Batches, NextTokens
from training.data.gato import digits, pendulum
from training.data.gato.batches import IN_VIEW
from training.data.loading import RunData
from training.evaluation.held_out import evaluate_run
from training.generation.gato import Gato, of_text
from training.runs.directory import Description, Run

DRAWN = 5  # drawings of each digit
SWINGS = 16
AT_ONCE = 120  # images in a batch
UPRIGHT = 0.95  # cos θ above which the pendulum counts as upright


class Swings(NamedTuple):
    """The swings of several pendulums."""

    cos: np.ndarray  # of the angle from upright, [swings, steps]
    torques: np.ndarray  # [swings, steps]
    rewards: np.ndarray  # [swings, steps]

    def figures(self) -> dict[str, float]:
        """Return the mean return (sum of rewards), and the share of the second half of the steps spent upright."""
        half = self.cos.shape[1] // 2
        upright = float((self.cos[:, half:] > UPRIGHT).mean())
        return {"return": float(self.rewards.sum(axis=1).mean()), "upright": upright}


def swing(controller: Any, *, n: int = SWINGS, seed: int = 1000, steps: int = pendulum.STEPS) -> Swings:
    """Steer n pendulums in a closed loop, without disturbances: the controller maps the observations so far, [n, steps,
    3], and the torques, [n, steps − 1, 1], to the next torques [n].
    """
    state = pendulum.starts(n, np.random.default_rng(seed))
    seen, done, rewards = [], [], []
    for _ in range(steps):
        seen.append(pendulum.observed(state))
        before = np.stack(done, axis=1)[..., None] if done else np.zeros((n, 0, 1))
        torque = controller(np.stack(seen, axis=1), before)
        rewards.append(pendulum.reward(state, torque))
        state = pendulum.moved(state, torque)
        done.append(torque)
    cos = np.stack(seen, axis=1)[..., 0]
    return Swings(cos, np.stack(done, axis=1), np.stack(rewards, axis=1))


def cloned(gato: Gato) -> Any:
    """Return the model as a controller, which reads as many of the last steps as in training."""

    def controller(observations: np.ndarray, torques: np.ndarray) -> np.ndarray:
        seen, done = observations[:, -IN_VIEW:] / pendulum.UNIT, torques[:, 1 - IN_VIEW :] / pendulum.TORQUE
        return gato.actions(list(seen), list(done))[:, 0] * pendulum.TORQUE

    return controller


def by_expert(observations: np.ndarray, _: np.ndarray) -> np.ndarray:
    """The controller that was cloned."""
    return pendulum.expert(observations[:, -1])


def by_nobody(observations: np.ndarray, _: np.ndarray) -> np.ndarray:
    """No torque at all."""
    return np.zeros(len(observations))


def draw(gato: Gato, *, n: int = DRAWN, tau: float = 0.5, seed: int = 0) -> np.ndarray:
    """Return the shades of n drawings of each digit, [10, n, 8, 8]."""
    asked = [name for name in digits.NAMES for _ in range(n)]
    options = {"n": digits.SIDE**2, "levels": digits.SHADES, "tau": tau, "key": jax.random.key(seed)}
    return gato.drawings(asked, **options).reshape(10, n, digits.SIDE, digits.SIDE)


def named(gato: Gato, held_out: digits.Digits) -> list[str]:
    """Return the names that the model gives to images."""
    pixels = held_out.pixels
    return [name for i in range(0, len(pixels), AT_ONCE) for name in gato.names(list(pixels[i : i + AT_ONCE]))]


def figures(run: Run, description: Description, data: RunData, part: str) -> dict[str, dict[str, float]]:
    """Return figures by method, this model first: bits per byte of the text, accuracy on the digits, swings."""
    from sklearn.linear_model import LogisticRegression  # as slow to import as to fit

    gato, train, held_out = Gato(run), digits.load("train"), digits.load("validation")
    simple = LogisticRegression(max_iter=2000).fit(train.shades.reshape(len(train.labels), -1) / 16, train.labels)
    truth = [digits.NAMES[label] for label in held_out.labels]
    accuracy = float(np.mean([a == b for a, b in zip(named(gato, held_out), truth, strict=True)]))
    drawings = draw(gato)
    recognized = simple.predict(drawings.reshape(-1, digits.SIDE**2) / 16).reshape(10, -1) == np.arange(10)[:, None]
    theirs = float(simple.score(held_out.shades.reshape(len(truth), -1) / 16, held_out.labels))
    of_digits = {"accuracy": accuracy, "recognized": float(recognized.mean())}
    return {
        "this model": bits_per_byte(run, description, data, part) | of_digits | swing(cloned(gato)).figures(),
        "logistic regression": {"accuracy": theirs},
        "the expert": swing(by_expert).figures(),
        "no torque": swing(by_nobody).figures(),
    }


def bits_per_byte(run: Run, description: Description, data: RunData, part: str) -> dict[str, float]:
    """Return the bits per byte of held-out text, or its loss if the tokens do not decode to the exact text."""
    settings, store = description.settings, getattr(data.stores, part)
    texts = NextTokens(store, l_max=settings.l_max, mode="packed")
    found = evaluate_run(of_text(run), settings, Batches(texts, batch_size=settings.batch_size, seed=settings.seed))
    name = "bits_per_byte" if "bits_per_byte" in found else "loss"
    return {name: found[name]}


def picture_of_digits(gato: Gato, path: Path, *, shown: int = 10) -> None:
    """Plot held-out images with the model's names, and below them its drawings of every digit."""
    from matplotlib.figure import Figure

    held_out = digits.load("validation")
    rng = np.random.default_rng(0)
    chosen = [rng.choice(np.flatnonzero(held_out.labels == label)) for label in range(shown)]
    names = gato.names([held_out.pixels[i] for i in chosen])
    drawings = draw(gato)
    figure = Figure(figsize=(8, 5.2), layout="constrained")
    rows = figure.subplots(1 + DRAWN, 10)
    for column in range(10):
        axes = rows[0, column]
        axes.imshow(held_out.shades[chosen[column]], cmap="gray_r", vmin=0, vmax=16)
        right = names[column] == digits.NAMES[held_out.labels[chosen[column]]]
        axes.set_title(names[column], fontsize=9, color="black" if right else "red")
        for i in range(DRAWN):
            rows[1 + i, column].imshow(drawings[column, i], cmap="gray_r", vmin=0, vmax=16)
        rows[1, column].set_title(digits.NAMES[column], fontsize=9)
    for axes in rows.ravel():
        axes.set(xticks=[], yticks=[])
    rows[0, 0].set_ylabel("named")
    rows[1, 0].set_ylabel("drawn")
    figure.suptitle("held-out digits with the names that the model gives them, and what it draws for a name")
    figure.savefig(path, dpi=110)


def picture_of_pendulum(gato: Gato, path: Path, *, n: int = 4) -> dict[str, float]:
    """Plot angle and torque of n pendulums that the model steers, with the expert's angle; return their figures."""
    from matplotlib.figure import Figure

    ours, theirs = swing(cloned(gato), n=n), swing(by_expert, n=n)
    seconds = np.arange(ours.cos.shape[1]) * pendulum.DT
    figure = Figure(figsize=(8, 5), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    for i in range(n):
        color = f"C{i}"
        above.plot(seconds, ours.cos[i], color=color, linewidth=1.5, label="the model" if i == 0 else None)
        above.plot(seconds, theirs.cos[i], color=color, linewidth=0.8, linestyle=":", label=None if i else "the expert")
        below.plot(seconds, ours.torques[i], color=color, linewidth=0.9)
    above.set(ylabel="cos θ (1: upright)", title="pendulums that the model steers in a closed loop")
    above.legend(loc="lower right")
    below.set(ylabel="its torque", xlabel="seconds")
    figure.savefig(path, dpi=110)
    return ours.figures()
