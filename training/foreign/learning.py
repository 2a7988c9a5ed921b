"""Checks after the lines of a transformer: loss, gradients, updates and sampled tokens."""

import contextlib
import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from .cases import EPSILON
from .catalogue import BACKWARD, SLOTS, choice, related
from .diagnose import Diagnosis
from .evidence import Departure, Walk
from .match import MARGIN
from .parts import OF_MTP
from .reference import Reference, gradient
from .run import Key, kind_of

__all__ = ["findings"]

TRAINING = {8: (11, "5", "6"), 9: (12, "9", "10"), 10: (13, "5", "6")}
"""Transformer → the algorithm of its training, and its lines of the loss and of the step."""

INFERENCE = {8: (15, "6"), 10: (14, "5")}  # transformer → the algorithm of its inference, and its line that samples

DIRECTIONS: dict[str, Callable[[Any], Any]] = {
    "∇loss": lambda g: g, "Adam's direction": lambda g: g / (np.abs(g) + 1e-8),
    "Adam's direction, not divided by 1 − β": lambda g: 0.1 * g / (0.001**0.5 * np.abs(g) + 1e-8),
}  # fmt: skip
"""Directions of a first step, from the gradient."""

COPIES = {
    ("W_e in W_u",): "W_e, tied, gets from the logits",
    **{of: f"{of[0][:3]} gets from the second head, which has a copy of it," for of in (OF_MTP[:1], OF_MTP[1:])},
    OF_MTP: "W_e and W_u get from the second head, which has copies of them,",
}
"""The uses of a parameter that no gradient passes → what is missing then."""

LEAST = 8  # with fewer numbers of a parameter, a fit proves nothing
COMPONENTS = 90  # number of components of the gradient on which an explanation is tried


def findings(diagnosis: Diagnosis, walk: Walk) -> list[Departure]:
    """The departures of the loss and of all that follows, where the lines before are explained."""
    is_unknown = bool(walk.departures) and walk.departures[-1].kind == "unknown"
    if diagnosis.case.algorithm not in TRAINING or walk.is_lost or is_unknown:
        return []
    return list(_Learning(diagnosis, walk).findings())


class _Learning:
    """The comparison of what a recording has beyond its lines, with the choices that a walk has adopted."""

    def __init__(self, diagnosis: Diagnosis, walk: Walk) -> None:
        self.diagnosis, self.walk, self.case, self.recording = diagnosis, walk, diagnosis.case, diagnosis.recording
        is_mixed = diagnosis.is_mixed or walk.narrow_tables
        self.epsilon = EPSILON["float32"] if is_mixed else diagnosis.epsilon
        self.slot = "masked_loss" if self.case.algorithm == 9 else "loss"
        self.loss: Any = self.case.base.get(self.slot, "sum")
        mtp = walk.run.name("mtp_loss", "")
        self.mtp = [mtp, *related("mtp_loss", mtp)] if "mtp/W_m" in self.case.theta else [""]
        self.algorithm, self.line, self.step = TRAINING[self.case.algorithm]

    def run(self, **options: Any) -> Reference:
        """A run with the adopted choices."""
        return Reference(self.case, self.walk.choices, extras=self.diagnosis.extras, **options).go()

    def findings(self) -> Iterator[Departure]:
        """Departures, in the order of the paper."""
        if self.recording.loss is not None:
            found = self._loss() or self._weighed()
            if found is None:
                yield self._departure(self.line, "", "the loss differs, by no choice of the catalogue", None)
                return
            if callable(found):
                yield self._departure(self.line, "", found.text, {})
            elif found != self.loss:
                yield self._departure(self.line, "", SLOTS[self.slot][found].text, {self.slot: found})
            if (mtp := self.walk.choices.get("mtp_loss")) is not None:
                yield self._departure(self.line, "", choice("mtp_loss", mtp).text, {"mtp_loss": mtp})
            self.loss = found
        if self.recording.gradients:
            yield from self._gradients()
        if self.recording.updated:
            yield from self._update()
        if self.recording.sampled is not None and self.case.sampling:
            yield from self._sampling()

    def _departure(self, line: str, what: str, text: str, choices: Mapping[str, str] | None) -> Departure:
        return Departure(self.algorithm, line, what, "", text, "unknown" if choices is None else "named", choices or {})

    def _loss(self) -> str | None:
        """The choice that gives the code's loss; that of a second head is adopted."""
        own, theirs = self.case, self.recording.loss or 0.0
        for case in self._cases():
            self.case = case
            exact, noisy = self.run(), self.run(epsilon=self.epsilon)
            for mtp, name in itertools.product(self.mtp, dict.fromkeys((self.loss, *SLOTS[self.slot]))):
                spread = noisy.loss(name, mtp)
                off = abs(float(exact.loss(name, mtp)[0]) - theirs)
                if off <= 8 * float(np.abs(spread - spread[0]).max()) + 1e-13:
                    self.walk.choices |= {"mtp_loss": mtp} if mtp != self.mtp[0] else {}
                    return name
        self.case = own
        return None

    def _weighed(self) -> "_Weighed | None":
        """The sum of predictions, smoothed labels and squares of log Σ exp of the logits that has the code's gradient."""
        theirs = self._theirs(self.recording.gradients)
        if not theirs:
            return None
        at = {n: of for n, of in _components(list(theirs), theirs).items() if of}
        g = gradient(self.case, _terms, self.walk.choices, at=at, extras=self.diagnosis.extras)
        A, b = np.concatenate([g[n] for n in at], axis=-1).T, np.concatenate([theirs[n][at[n]] for n in at])
        weights = np.linalg.lstsq(A, b, rcond=None)[0]
        loss = _Weighed(np.where(np.abs(weights) < 1e-7 * np.abs(weights).max(), 0.0, weights))
        value = float(np.real(loss(self.run()))[0])
        is_right = abs(value - (self.recording.loss or 0.0)) <= 1e3 * self.epsilon * max(1.0, abs(value))
        return loss if is_right and self._near(A @ loss.weights, b, float(np.abs(b).max())) else None

    def _theirs(self, arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Foreign gradients (or updated parameters) by θ's names, flat; NaN where nothing is known."""
        found: dict[str, np.ndarray] = {}
        for foreign, parts in reversed(self.diagnosis.maps.items()):  # the first of copies stands
            for name, mine, theirs in parts if foreign in arrays else ():
                flat = found.setdefault(name, np.full(self.case.theta[name].size, np.nan))
                flat[mine] = np.asarray(arrays[foreign]).reshape(-1)[theirs]
        return found

    def _gradients(self) -> Iterator[Departure]:
        g = gradient(self.case, self.loss, self.walk.choices, extras=self.diagnosis.extras)
        mine, theirs = {n: a.reshape(-1) for n, a in g.items()}, self._theirs(self.recording.gradients)
        largest = max(float(np.abs(a).max()) for a in mine.values())
        scale = {n: max(np.abs(mine[n]).max(), np.nanmax(np.abs(a))) + 0.01 * largest for n, a in theirs.items()}
        none = [n for n in self._theirs(self.recording.parameters) if n not in theirs and np.any(mine[n])]
        wrong = [n for n, a in theirs.items() if not self._near(mine[n], a, scale[n])]
        if none:
            text = f"going backwards, no gradient arrives at {self._backwards(none)} (detached, or frozen)"
            yield self._departure(self.step, "gradient", text, {})
        if not wrong:
            return
        have = np.concatenate([~np.isnan(theirs[n]) for n in wrong])
        a, b = (np.concatenate([of[n] for n in wrong])[have] for of in (mine, theirs))
        c = float(a @ b / max(a @ a, 1e-300))
        if all(self._near(c * mine[n], theirs[n], max(abs(c), 1.0) * scale[n]) for n in wrong):
            text = f"the gradient is {c:.6g} times that of the loss{self._meaning(c)}: of {_names(wrong, theirs)}"
            yield self._departure(self.step, "gradient", text, {})
            return
        fits = functools.partial(self._fits, theirs, scale, _components(wrong, theirs))
        if any(fits(case=case) for case in self._cases()):
            return
        text = f"going backwards, the gradient differs from {self._backwards(wrong)} on"
        yield self._explained(fits) or self._departure(self.step, "gradient", text, None)

    def _backwards(self, names: list[str]) -> str:
        """The last used of some parameters, and the number of those before it."""
        last = max(names, key=lambda name: self.walk.run.asked.get(("θ", name), ("", 0))[1])
        return last + (f" and {len(names) - 1} more before it" if len(names) > 1 else "")

    def _near(self, mine: np.ndarray, theirs: np.ndarray, scale: float) -> bool:
        have = ~np.isnan(theirs)
        return np.abs(theirs - mine)[have].max(initial=0.0) <= 300 * self.epsilon * scale

    def _meaning(self, c: float) -> str:
        n = len(self.case.inputs.get("masked", range(len(self.case.inputs["x"]) - 1)))
        told = {0.0: "detached", -1.0: "uphill", float(n): "summed, not averaged", 1 / n: "averaged, not summed"}
        return next((f" ({text})" for value, text in told.items() if abs(c - value) < 1e-5 * max(1, abs(value))), "")

    def _fits(
        self, theirs: Any, scale: Any, at: Any, *, loss: str = "", case: Any = None, choices: Any = None, **how: Any
    ) -> bool:
        """Whether the gradient of a loss, of a case with choices, is the foreign one at some components."""
        case, choices = case or self.case, {**self.walk.choices, **(choices or {})}
        with contextlib.suppress(KeyError, ValueError, IndexError):
            g = gradient(case, loss or self.loss, choices, at=at, extras=self.diagnosis.extras, **how)
            return all(self._near(g[n], theirs[n][at[n]], scale[n]) for n in at)
        return False

    def _other_loss(self, fits: Callable[..., bool]) -> Departure | None:
        """Another loss, or another of a second head, that gives the foreign gradient, where the loss is not known."""
        losses = [(self.slot, name) for name in SLOTS[self.slot]] + [("mtp_loss", name) for name in self.mtp[1:]]
        for slot, name in losses if self.recording.loss is None else ():
            if fits(loss=name) if slot == self.slot else fits(choices={slot: name}):
                return self._departure(self.line, "", choice(slot, name).text, {slot: name})
        return None

    def _explained(self, fits: Callable[..., bool]) -> Departure | None:
        """The line that no gradient passes, or whose derivative is another formula's, that gives the foreign gradient."""
        if (loss := self._other_loss(fits)) is not None:
            return loss
        for line, text, case, choices in self._in_training():
            if fits(case=case, choices=choices):
                return self._departure(line, "", text, {})
        lines = self.walk.run.lines
        kinds = {seen.key.kind: seen.key for seen in lines.values()}
        if kind := next((kind for kind in kinds if fits(detached=frozenset([kind]))), None):
            key, text = kinds[kind], "no gradient passes it (detached, or a term is missing)"
            return Departure(key.algorithm, key.line, key.what, kind_of(key.place), text, "named")
        for copies, text in COPIES.items():
            if fits(detached=frozenset(copies)):
                return self._departure(self.step, "gradient", f"what {text} is missing", {})
        for slot, place, key in self._derivatives():
            for name in SLOTS[slot]:
                scope = f"{slot}@{place}" if place else slot
                if name != self.walk.run.name(slot, place) and fits(backward={scope: name}):
                    text = f"its derivative is as if {SLOTS[slot][name].text}"
                    return Departure(key.algorithm, key.line, key.what, place, text, "named")
        return None

    def _cases(self) -> list[Any]:
        """The case, and with any other padding if the code attends to that."""
        is_read = any(name == "padding" for name in self.walk.choices.values())
        return list(self._paddings()) if is_read else [self.case]

    def _paddings(self) -> Iterator[Any]:
        """The case, and with each token as the padding: what stands there is the code's own affair."""
        case, given = self.case, self.case.inputs
        yield case
        for name, length in (("x", "length"), ("z", "z_length")):
            l = given.get(length, 0)
            for token, how in itertools.product(range(case.sizes["N_V"]) if l else (), SLOTS["padding"]):
                inputs = {**given, name: [*given[name][:l], *[token] * (len(given[name]) - l)]}
                yield dataclasses.replace(case, inputs=inputs, base={**case.base, "padding": how})

    def _in_training(self) -> Iterator[tuple[str, str, Any, dict[str, str]]]:
        """Inputs that training may give the transformer in place of inference's: line, text, case, choices."""

        def giving(case: Any, **inputs: Any) -> Any:
            return dataclasses.replace(case, inputs={**case.inputs, **inputs})

        for case in self._paddings():
            given = case.inputs
            if "z_length" in given:
                text = "the padding of the context is attended to"
                yield "4", text, giving(case, z_length=None), {}
                for place, where in (("enc*/5", "in the encoder"), ("dec*/16", "in cross-attention")):
                    yield "4", f"{text} {where}", case, {f"mask@{place}": "padding"}
            l = len(given["x"])
            for more in _some_of(range(given.get("length", l), l)) if "masked" in given else ():
                masked = [*given["masked"], *more]
                yield "7", "padding that is masked is predicted, too", giving(case, masked=masked), {}
        if self.case.algorithm != 9:
            return
        own = self.case.inputs
        l, mask_token, masked = own.get("length", len(own["x"])), self.case.sizes["N_V"] - 3, list(own["masked"])

        def of(chosen: Any, token: int = mask_token) -> Any:
            x = [token if t in chosen else v for t, v in enumerate(own["labels"][:l])]
            return giving(self.case, x=x + own["x"][l:], masked=list(chosen))

        yield "5", "the tokens that are not drawn are masked", of([t for t in range(l) if t not in masked]), {}
        for token in range(mask_token + 3):
            yield "5", f"masked tokens are replaced by token {token}, not mask_token", of(masked, token), {}
        for chosen in _some_of(range(l)):
            numbers = ", ".join(str(t + 1) for t in chosen)
            yield "5", f"other tokens are masked than the draws say: number {numbers}", of(chosen), {}

    def _derivatives(self) -> list[tuple[str, str, Key]]:
        """The places where a derivative may be another formula's: slot, kind of place, and the first line there."""
        found: dict[tuple[str, str], Key] = {}
        for visit, used in self.walk.run.uses.items():
            for slot, place in used if visit in self.walk.run.lines else ():
                if slot in BACKWARD:
                    found.setdefault((slot, kind_of(place)), self.walk.run.lines[visit].key)
        several = [slot for slot in BACKWARD if sum(of == slot for of, _ in found) > 1]
        wide = [(slot, "", next(key for (of, _), key in found.items() if of == slot)) for slot in several]
        return [*((slot, place, key) for (slot, place), key in found.items()), *wide]

    def _update(self) -> Iterator[Departure]:
        theirs = self._theirs(self.recording.updated)
        g = gradient(self.case, self.loss, self.walk.choices, extras=self.diagnosis.extras)
        g = {n: a.reshape(-1) for n, a in g.items()} | self._theirs(self.recording.gradients)
        W = {n: np.asarray(a, np.float64).reshape(-1) for n, a in self.case.theta.items()}
        norm = float(np.sqrt(sum(np.nansum(g[n] ** 2) for n in theirs)))
        declared = self.case.base.get("update", "descent")
        for name in dict.fromkeys((declared, *SLOTS["update"])):
            step = choice("update", name).do
            rounding = {n: 1.0 + np.abs(a).max() for n, a in W.items()}
            if all(self._near(step(W[n], g[n], self.case.eta, norm), a, rounding[n]) for n, a in theirs.items()):
                if name != declared:
                    yield self._departure(self.step, "", choice("update", name).text, {"update": name})
                return
        text = self._stepped({n: a for n, a in theirs.items() if np.isfinite(a).sum() > LEAST}, g, W, norm)
        unknown = "θ after the step differs, by no choice of the catalogue"
        yield self._departure(self.step, "", text or unknown, {} if text else None)

    def _stepped(self, theirs: Mapping[str, Any], g: Mapping[str, Any], W: Mapping[str, Any], norm: float) -> str:
        """The step as θ − a D − b θ, of a direction D, where numbers a and b fit all parameters; else ""."""
        eta = self.case.eta
        for name, direction in DIRECTIONS.items():
            a, b = {}, {}
            for n, after in theirs.items():
                have = np.isfinite(after)
                A = np.stack([direction(g[n][have]), W[n][have]], axis=1)
                (a[n], b[n]), y = np.linalg.lstsq(A, (W[n] - after)[have], rcond=None)[0], (W[n] - after)[have]
                if np.abs(A @ [a[n], b[n]] - y).max() > 300 * self.epsilon * (1.0 + np.abs(W[n]).max()):
                    break
            else:
                moved = [n for n in theirs if np.abs(g[n]).max() > 1e-9]
                rate, decay = float(np.median([a[n] for n in moved])), max(map(float, b.values()))
                if np.ptp([a[n] for n in moved]) > 1e-4 * abs(rate):
                    continue
                without = [n for n in theirs if abs(b[n]) < 0.01 * abs(decay)]
                if name == "∇loss" and rate < eta and not decay > 1e-9:
                    return f"the gradient is clipped to norm {rate / eta * norm:.4g}"
                told = f"the step is θ − {rate:.6g}·{name}" if abs(rate - eta) > 1e-6 else f"the step is θ − η·{name}"
                told += f", and θ decays by {decay / rate:.4g} times that" if decay > 1e-9 else ", without decay"
                return told + (f", but not {_names(without, W)}" if without and decay > 1e-9 else "")
        return ""

    def _sampling(self) -> Iterator[Departure]:
        (algorithm, line), said = INFERENCE[self.case.algorithm], self.case.sampling
        theirs, N_V = self.recording.sampled or [], self.case.sizes["N_V"]
        x, declared = list(said.get("x", theirs[:1])), self.case.base.get("sampling", "paper")
        drawn = theirs[len(x) :] if algorithm == 15 else theirs

        def fits(name: str, drawn: list[int]) -> bool:
            told = list(zip(self._drawn(name, x, drawn), drawn, strict=True))
            return all(None in of or token in of for of, token in told) and any(None not in of for of, _ in told)

        others = [name for name in SLOTS["sampling"] if name != declared]
        if algorithm == 15 and x != [N_V - 2]:
            yield Departure(15, "1", "", "", f"it begins with token {x}, not with bos_token", "named")
        if not fits(declared, drawn):
            ending = _ending(drawn, N_V - 1, functools.partial(fits, declared)) if algorithm == 15 else ""
            fitting = [name for name in others if not ending and fits(name, drawn)]
            texts = [choice("sampling", name).text for name in fitting]
            if ending:
                yield Departure(15, "3", "", "", ending, "named")
            elif fitting:
                yield Departure(algorithm, line, "", "", ", or ".join(texts), "named", {"sampling": fitting[0]})
            elif algorithm == 14 and theirs[0] == x[-1] and fits(declared, drawn[1:]):
                yield Departure(14, "return", "", "", "the last token of the prompt is returned, too", "named")
            else:
                text = "other tokens are sampled, by no choice of the catalogue"
                yield Departure(algorithm, line, "", "", text, "unknown")
        elif algorithm == 15 and theirs[-1] != N_V - 1 and len(theirs) < self.case.sizes["l_max"]:
            text = f"it stops after {len(theirs)} tokens, with token {theirs[-1]}, before eos_token and ℓ_max"
            yield Departure(15, "3", "", "", text, "named")
        elif algorithm == 15 and N_V - 1 in theirs[:-1]:
            yield Departure(15, "3", "", "", "it does not stop at eos_token", "named")

    def _drawn(self, name: str, x: list[int], drawn: list[int]) -> Iterator[set[int | None]]:
        """The tokens that a choice may draw in the code's dtype, each behind those that the code has drawn before.

        None: it does not tell.
        """
        said, do = self.case.sampling, choice("sampling", name).do
        for i in range(len(drawn)):
            given = dataclasses.replace(self.case, inputs={**self.case.inputs, "x": [*x, *drawn[:i]]})
            run = Reference(given, self.walk.choices, extras=self.diagnosis.extras, epsilon=self.epsilon).go()
            exact, apart = run.log_P[0], MARGIN * (run.log_P - run.log_P[0])
            yield {do(exact + by, said["tau"], said["draws"], i) for by in (*apart, *-apart)}


class _Weighed:
    """A loss with weights for each prediction, for smoothed labels and for squares of log Σ exp of the logits."""

    def __init__(self, weights: np.ndarray) -> None:
        self.weights = weights

    def __call__(self, run: Reference) -> Any:
        return np.tensordot(self.weights, _terms(run), 1)

    @property
    def text(self) -> str:
        """In words, such as "labels are smoothed by 0.1 (mean)"."""
        *each, smoothed, z = self.weights
        n, total = len(each), float(np.mean(each)) + smoothed
        parts = [f"labels are smoothed by {smoothed / total:.4g}"] if smoothed else []
        parts += [f"{z / total:.4g}·(log Σ exp of the logits)² is added"] if z else []
        if np.ptp(each) > 1e-6 * abs(total):
            return "; ".join([*parts, f"predictions are weighed by {', '.join(f'{w:.4g}' for w in each)}"])
        for value, by, how in ((1, 1e-6, "sum"), (1 / n, 1e-6 * abs(total), "mean")):
            if abs(total - value) < by:
                return f"{'; '.join(parts)} ({how})"
        return "; ".join([*parts, f"the mean is multiplied by {total * n:.6g}"])


def _terms(run: Reference) -> Any:
    """The parts that a loss may be the sum of: each prediction's, that of smoothed labels, log Σ exp squared."""
    given, P = run.case.inputs, run.log_P
    labels = given.get("labels", given["x"])
    at = [(t, labels[t]) for t in given["masked"]] if "masked" in given else list(enumerate(labels[1:]))
    places = [t for t, _ in at]
    z = ((run.logits - P)[..., 0, :] ** 2)[..., places].sum(-1)
    return np.stack([*(-P[..., v, t] for t, v in at), -P.mean(-2)[..., places].sum(-1), z])


def _components(wrong: list[str], theirs: Mapping[str, Any]) -> dict[str, list[int]]:
    """Some components of the gradient, most of them wrong."""
    rng, at = np.random.default_rng(0), {}
    for names, count in ((wrong, 2 * COMPONENTS // 3), ([n for n in theirs if n not in wrong], COMPONENTS // 3)):
        for n in names:
            known = np.flatnonzero(~np.isnan(theirs[n]))
            at[n] = rng.permutation(known)[: max(1, count // len(names))].tolist()
    return at


def _ending(drawn: list[int], eos: int, fits: Callable[[list[int]], bool]) -> str:
    """A sequence's other ending, if its tokens before that fit the draws; else ""."""
    last = drawn[-1]
    same = sum(1 for _ in itertools.takewhile(lambda token: token == last, reversed(drawn)))
    if last == eos and fits(drawn[:-1]):
        return f"eos_token is written after {len(drawn)} tokens, without being drawn"
    if same > 1 and fits(drawn[: len(drawn) - same + 1]):
        return f"it ends at token {last}, not at eos_token"
    return ""


def _some_of(tokens: range) -> Iterator[tuple[int, ...]]:
    """Every choice of tokens, but for none."""
    return itertools.chain.from_iterable(itertools.combinations(tokens, n + 1) for n in range(len(tokens)))


def _names(wrong: list[str], every: Mapping[str, Any]) -> str:
    if len(wrong) >= len(every) - sum(name.endswith("b_k") for name in every):  # a bias of the keys has no gradient
        return "all parameters"
    kinds = list(dict.fromkeys(re.sub(r"\d+/", "*/", name) for name in wrong))
    return ", ".join(kinds[:8]) + (f" and {len(kinds) - 8} more" if len(kinds) > 8 else "")
