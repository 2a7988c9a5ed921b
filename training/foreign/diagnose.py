"""Which line is wrong, and how: a walk through the lines that adopts one departure after another.

A line is in step if it was found, or if what is computed from it was (and really depends on it). For the first that is
not, every choice of every slot around is tried; the one that newly explains most tensors is adopted, at this place, in
every layer, or everywhere, whichever still explains as much; of equals, the one with which most is explained a few
departures later. If none fits, each foreign tensor of the right shape is tried as the line's value, so that the lines
behind it can be checked all the same, and then pairs of choices. After two such unknowns the walk stops.
"""

import contextlib
import copy
import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

from .cases import EPSILON, Case, rounded
from .catalogue import BIASES, RARE, SLOTS, STRUCTURE, choice, related
from .evidence import (
    Departure,
    Walk,
    first_nan,
    in_step,
    is_float32,
    is_halfway,
    is_repeated,
    is_same,
    measured,
    needed,
    score,
    told,
    without_nan,
)  # fmt: skip
from .loading import held
from .match import Finder, Group, Match, Observed
from .recording import Recording
from .reference import Reference
from .run import TABLES, Choices, Key, Seen, chosen, kind_of, real, scopes

__all__ = ["Diagnosis", "Tell"]

PATIENCE = 24_000  # runs of the reference, of one to three milliseconds each, after which a walk stops
ROUNDING = 1.0  # maximum of `Seen.apart` that rounding alone leaves: it is half as wide as the noise of replicas
FORKS = 2  # maximum number of times that a walk which ends early goes back and takes the next best choice
LOOK = 14  # number of lines in a row that a run may miss where a few departures are looked ahead
UNKNOWN = 2  # number of departures without a name that end a walk: what follows would be guesses
PAIRS = 4000  # number of pairs of choices that are tried for a line

ERRORS = (KeyError, ValueError, ZeroDivisionError, FloatingPointError, IndexError)
"""Exceptions that a choice may raise where it does not apply."""

OF_ATTENTION = (
    "weights", "split", "q_reads", "kv_reads", "q_square", "k_square", "v_square", "scale", "mask", "softmax_axis",
)  # fmt: skip

SPARE = (
    "weights", "split", "mask", "mask_fill", "scale", "rotates", "norm_here", "qk_norm", "kv_reads", "kv_layer", "position_index",
)  # fmt: skip
"""Slots where code may compute the paper's choice, and then not use it."""

INSERTING = {"embedded_scale", "extra_norm", "norm_here", "order", "post_norm", "parallel", "residual", "mtp_reads"}
"""Slots whose choices change what norms read, before lines that may have been found because norms forget a factor."""

MOST_FITS = 16  # number of foreign tensors tried for a line: the first that the code computes behind the lines before

FITTED = {
    "scale": (("×{}",), 1e-3, 1e3), "mask_fill": (("-{}", "add -{}"), 0.1, 1e3), "norm_epsilon": (("+{}",), 1e-13, 10.0), "cap": (("{}",), 0.1, 1e3),
    **{f"{of}_scale": (("{}",), 1e-3, 1e3) for of in ("embedding", "position", "embedded", "unembed")},
    "residual": (("X + {} A", "{} X + A"), 1e-3, 1e3),
    "score_cap": (("{}",), 0.1, 1e3), "rotation": (("", "halves {} 2i/d", "neighbours {} 2i/d"), 10.0, 1e8),
}  # fmt: skip
"""Slots with a number that is fitted where no listed one explains: its names, and where it is looked for."""

Tell = Callable[[str], None]
Pins = Mapping[str, Seen]
Trial = tuple[str, str, str]  # slot, place, name
Trials = Sequence[tuple[Trial, ...]]  # of choices that are tried together
New = dict[str, str]  # choices by scope
Taken = tuple[Seen, str, str]  # a foreign tensor as the value of a line, the departure's text and kind
Explanation = tuple[New | None, Taken | None]


class Diagnosis:
    """The search for what a recording departs in from a case.

    `declared`: choices that are known to differ; `tell` receives the progress now and then.
    """

    def __init__(
        self, case: Case, recording: Recording, declared: Choices | None = None, tell: Tell = lambda _: None
    ) -> None:
        self.tell, self.at, self.dtype = tell, "", recording.dtype
        self.case = dataclasses.replace(case.rounded(self.dtype), base={**case.base, **(declared or {})})
        self.recording, self.epsilon, self.runs = recording, EPSILON[self.dtype], 0
        self.maps, self.missing, others = held(rounded(recording.parameters, self.dtype), self.case.theta)
        self.lost = first_nan(recording)
        self.finder = Finder([*recording.tensors, *without_nan(recording)], case.lengths)

        def of_size(size: int | None) -> dict[str, Any]:
            return {f"extra:{n}": a.reshape(-1) for n, a in others.items() if a.size == size and np.any(a)}

        biases, d_e = of_size(case.sizes.get("N_V")), case.sizes.get("d_e")
        rows = {f"extra:{n}[0]": a[0] for n, a in others.items() if a.ndim == 2 and a.shape[1] == d_e}
        self.extras = biases | rows
        self.more = {"unembed_bias": list(biases), "embedding_extra": list(rows)}
        for name in self.missing:  # what the code may have in place of a bias of θ
            slot, more = f"{name.rpartition('b_')[2]}_bias", of_size(self.case.theta[name].size)
            if "b_" in name and slot.removesuffix("_bias") in BIASES:
                self.extras |= more
                self.more[slot] = list(dict.fromkeys([*self.more.get(slot, ()), *more]))
        self.loose: set[str] = set()
        self.is_narrow = self.epsilon >= EPSILON["float16"]
        far = max(self.case.inputs.get("positions", ()), default=0) + max(case.lengths)
        # options of a run that tells roughly what a trial explains; where many rows are near, it takes longer than it spares
        rough = {"epsilon": 0.0, "rough": 64 * max(self.epsilon, TABLES * far)}
        self.rough: dict[str, Any] = {} if self.is_narrow else rough
        self.is_mixed = self.dtype == "float64" and "float32" in recording.dtypes
        self.taken: dict[str, Seen] = {}
        self.cut: dict[str, str] = {}  # place → that not all pairs of choices were tried
        self.choices: dict[str, str] = {}
        self.departures: list[Departure] = []
        self.is_lost = False
        self.been: set[frozenset[Any]] = set()  # the choices, use by use, with which a walk has gone on
        self.apart = 0.0  # of what the choices taken newly explain, the mean of `Seen.apart`
        self.others: list[dict[str, str]] = []  # what would have explained a line nearly as well as the choices taken
        self.forks: list[tuple[dict[str, Any], dict[str, str], Reference, int]] = []  # the same, and where that was

    def run(self, choices: Choices, pins: Pins | None = None, budget: int | None = None, **like: Any) -> Reference:
        """A run of the reference that looks for its values among the foreign tensors."""
        self.runs += 1
        if self.runs % 50 == 0:
            self.tell(f"{self.at}, {self.runs} trials")
        options = {"pins": dict(pins or {}), "extras": self.extras, "budget": budget, "loose": self.loose}
        options |= {"finder": self.finder, "epsilon": self.epsilon, **like}
        return Reference(self.case, choices, **options).go()

    def walk(self) -> Walk:
        """The departures that explain all that the code shows; else those of the first walk."""
        self._without()
        self._go_on()
        first = self._state_now()
        for _ in range(FORKS):
            if not self.is_lost or not self.forks or self.runs > PATIENCE // 4:
                break
            state, other, run, index = self.forks.pop()
            vars(self).update(state)
            self._adopt(other, run, index)
            self._go_on()
        if self.is_lost:
            vars(self).update(first)
        self._simplify()
        self._revise()
        return told(self, self.run(self.choices, self.taken))

    def _without(self) -> None:
        """Begin with the biases that no parameter of the code holds: they are not added."""
        run, kinds = self.run(self.choices), {f"{name}_bias": f"b_{name}" for name in BIASES} | {"norm_beta": "beta"}
        for slot, leaf in kinds.items() if self.recording.parameters else ():
            own = {n for n in self.case.theta if re.fullmatch(rf"(.*/)?{leaf}(_\w+)?", n)}
            is_used = any(slot == of for of, _ in run.asked)
            if own and own <= set(self.missing) and is_used and not self.more.get(slot):
                self._adopt({slot: "none"}, run, 0)

    def _go_on(self) -> None:
        """Adopt departures until all that the code shows is explained, or nothing explains the next line."""
        for _ in range(60):
            run = self.run(self.choices, self.taken)
            self.been.add(self._state(run, self.choices))
            ok, ids = in_step(run), list(run.lines)
            visit = next((visit for visit in ids if not ok[visit]), None)
            if visit is None:
                break
            key = run.lines[visit].key
            explained = f"{ids.index(visit)} of {len(ids)} values explained"
            self.at = f"{explained}, {len(self.departures)} departures, at {visit}"
            self.tell(self.at)
            is_tail = not any(ok[other] for other in ids[ids.index(visit) :])
            is_softmax = (key.algorithm, key.line) == (4, "return")
            if self.runs > PATIENCE:
                text, kind = f"differs; the check stops after {PATIENCE} trials", "unknown"
            elif is_tail and self._shows_no_more(run):
                break
            elif not (is_softmax and self._is_of_nothing(run, visit)) and self._repair(run, visit):
                if len({kind_of(d.visit) for d in self.departures if d.kind == "unknown"}) < UNKNOWN:
                    continue
                text = f"{UNKNOWN} lines have no name: the check stops, for what is behind would be guessed"
                kind = "stopped"
            else:
                text, kind = self._why(run, visit)
                text += "; what follows cannot be checked"
            self._depart(key, text, kind)
            self.is_lost = True
            break

    def _state(self, run: Reference, choices: Choices) -> frozenset[Any]:
        """The choices of each use in a run, and the values that are taken over as they are."""
        said = ((use, chosen(choices, *use)) for use in run.asked if use[0] != "θ")
        return frozenset([*((use, name) for use, name in said if name not in (None, run.base_name(*use))), *self.taken])

    def _why(self, run: Reference, visit: str) -> tuple[str, str]:
        """Return the text about a line that no choice explains, and the kind of its departure."""
        if self.lost is None:
            return "differs, by no choice of the catalogue", "unknown"
        if self._is_of_nothing(run, visit):
            return "it is NaN where a token has nothing to attend to: a softmax of −∞ alone is 0/0", "named"
        of = (f"the code's parameter {name}" for name, W in self.recording.parameters.items() if np.isnan(W).any())
        return f"is NaN, first in {next(of, self.lost.name)}", "unknown"

    def _is_of_nothing(self, run: Reference, visit: str) -> bool:
        """Whether the code has NaN, and a token of an attention has nothing to attend to."""
        scores = run.lines.get(f"{run.lines[visit].key.place}:4.5")
        return self.lost is not None and scores is not None and np.isneginf(np.real(scores.value)).all(-2).any()

    def _depart(self, key: Key, text: str, kind: str, where: str = "", choices: Choices | None = None) -> None:
        where = where or key.place
        self.departures.append(Departure(key.algorithm, key.line, key.what, where, text, kind, choices or {}))

    def _shows_no_more(self, run: Reference) -> bool:
        """Whether what comes last is simply not computed: no output of the code is left unexplained."""
        matches = [seen.match for seen in run.lines.values() if seen.match]
        sets = [(np.sort(t.value, None), match.tolerance) for match in matches for t in match.tensors]

        def is_found(output: np.ndarray) -> bool:
            mine = np.sort(output, None)
            return any(have.size == mine.size and np.allclose(mine, have, 0.0, by) for have, by in sets)

        def is_begun(output: np.ndarray) -> bool:
            cuts = ((axis, l) for axis, n in enumerate(output.shape) for l in self.case.lengths if n > l)
            return any(is_found(output.take(range(l), axis)) for axis, l in cuts)

        whole = [o for o in self.recording.outputs if any(o.size % l == 0 for l in self.case.lengths)]
        every = whole or self.recording.outputs  # those of the last token only must be found, too
        return all(is_found(output) or is_begun(output) for output in every)

    def _repair(self, run: Reference, visit: str) -> bool:
        """Explain the first line that is not in step; whether something does."""
        ids, known = list(run.lines), set(score(run)[1])
        index = ids.index(visit)
        start = self._hidden(run, index) if self.is_narrow else index
        pins = {other: run.lines[other] for other in ids[:start] if run.lines[other].match is not None} | self.taken
        while start > 0 and ids[start - 1] in pins and ids[start - 1] not in known and ids[start - 1] not in self.taken:
            start -= 1  # rows of an earlier line, perhaps in another order, or all but those of padding
            del pins[ids[start]]
        if run.lines[visit].key.kind in {seen.key.kind for seen in self.taken.values()}:  # as in the layer before
            again = self._take(run, visit, pins)
            if again is not None:
                self._keep(*again)
                return True
        best, taken = self._searched(run, start, index, pins)
        if taken is not None:
            self._keep(*taken)
        elif best:
            self.forks += [(self._state_now(), other, run, index) for other in reversed(self.others)]
            self._adopt(best, run, index)
        return best is not None or taken is not None

    def _searched(self, run: Reference, start: int, index: int, pins: Pins) -> Explanation:
        """Choices that explain a line, none of them if float32 does, or a foreign tensor in its place."""
        trials, window = self._trials(run, start)
        trials = list(dict.fromkeys([*trials, *self._trials(run, index)[0]])) if self.is_narrow else trials
        is_strict = self.is_mixed and not {run.lines[other].key.kind for other in window} <= self.loose
        if is_strict and self._loosened(run, pins, index, window, ()) == {}:
            return {}, None
        singles = [(t,) for t in trials]
        best = self._best(singles, pins, index, run) or self._unused(run, pins, index)
        if best is None and is_strict:
            best = self._loosened(run, pins, index, window, singles)
        apart = self.apart
        if best is None or (apart > ROUNDING and set(map(_slot, best)) <= FITTED.keys()):
            fitted = self._fitted(run, start, index, trials, pins)
            best = fitted if best is None or (fitted and self.apart < apart) else best
        if best is not None:
            return best, None
        best, taken = self._rather(run, start, index, trials, pins)
        if best is None and taken is None:
            of_line = run.uses.get(list(run.lines)[index], ())
            best = self._unused(run, pins, index, [t for t in trials if t[:2] in of_line])
        if best is None and taken is None and is_strict:
            pairs = self._pairs(run, start, index, trials, is_taken=False)
            best = self._loosened(run, pins, index, window, pairs)
        return best, taken

    def _state_now(self) -> dict[str, Any]:
        """A walk's findings so far."""
        names = "choices", "departures", "taken", "loose", "is_lost"
        return {name: copy.copy(getattr(self, name)) for name in names}

    def _unused(self, run: Reference, pins: Pins, index: int, also: Sequence[Trial] = ()) -> dict[str, str] | None:
        """A choice by which a computed value is not used, such as the result of a norm; `also`: beside one of these."""
        visit = list(run.lines)[index]
        places = {run.lines[of].key.place for of in (visit, *run.lines[visit].inputs) if of in run.lines}
        free = {other: seen for other, seen in pins.items() if seen.key.place not in places or other in self.taken}
        uses = dict.fromkeys(use for used in run.uses.values() for use in used if use[1] in places)
        spare = [((*use, name),) for use in uses if use[0] in SPARE for name in SLOTS[use[0]]]
        pairs = [(of, other) for (of,), other in itertools.product(spare, also)]
        return self._best(pairs or spare, free, index, run)

    def _hidden(self, run: Reference, index: int) -> int:
        """First of the lines before one that are in step but not found, or within errors of half their spread: rounding may
        hide a departure in these.
        """
        for i, seen in reversed(list(enumerate(run.lines.values()))[:index]):
            value = np.real(seen.value[0])
            spread = float(np.std(value, where=np.isfinite(value)))
            if seen.match is not None and value.shape[-2] > 1 and 4 * seen.tolerance < spread:  # no mean or variance
                return index
            index = i
        return index

    def _rather(self, run: Reference, start: int, index: int, trials: list[Trial], pins: Pins) -> Explanation:
        """Explanations of a line that no single choice explains: two choices, or a foreign tensor in its place, or that of a
        line before which a number alone explains.
        """
        if self.lost is not None:  # no tensor is taken as it is, where some are NaN
            return self._best(self._pairs(run, start, index, trials, is_taken=True), pins, index, run), None
        found = [self._take(run, visit, pins) for visit in list(run.lines)[start : index + 1]]
        taken = next((of for of in found if of is not None and of[2] == "named"), found[-1])
        if taken is not None and taken[2] == "named":
            return None, taken
        pairs = self._pairs(run, start, index, trials, is_taken=taken is not None)
        best = self._best(pairs, pins, index, run, instead=taken)
        if best is None and taken is None:
            for source in run.lines[list(run.lines)[index]].inputs:  # in place of one that was found
                if taken is None and source in pins and source not in self.taken:
                    taken = self._take(run, source, {other: seen for other, seen in pins.items() if other != source})
        return best, taken if best is None else None

    def _keep(self, seen: Seen, text: str, kind: str) -> None:
        """Go on from a foreign tensor as the value of a line."""
        self.taken[seen.key.id] = seen
        self._depart(seen.key, text, kind)

    def _loosened(self, run: Reference, pins: Pins, index: int, window: list[str], singles: Trials) -> New | None:
        """Choices, perhaps none, with which a line may be found in float32, in code that otherwise is in float64.

        Without `singles`, a line of the window must have numbers of float32.
        """
        before = set(self.loose)
        self.loose |= {run.lines[visit].key.kind for visit in window}
        looser = self.run(self.choices, pins)
        fresh = [visit for visit in window if visit in looser.lines and run.lines[visit].match is None]
        matches = [match for visit in fresh if (match := looser.lines[visit].match) is not None]
        is_found = score(looser)[0] > index and (bool(singles) or any(map(is_float32, matches)))
        new = {} if is_found else self._best(singles, pins, index, run)
        looser = self.run({**self.choices, **new}, pins) if new else looser
        found = {seen.match and seen.key.kind for visit, seen in looser.lines.items() if visit in window}
        self.loose = before | (set() if new is None else found - {None})
        return new

    def _adopt(self, new: Mapping[str, str], run: Reference, index: int) -> None:
        """Take choices over, where they hold, and note the departures."""
        ids = list(run.lines)
        for scope, name in self._widened(new, run).items():
            slot, _, place = scope.partition("@")
            users = [visit for visit, used in run.uses.items() if any(scope in scopes(*use) for use in used)]
            at = next((visit for visit in ids[index:] if visit in users), users[0])
            self._depart(run.keys[at], _text(slot, name), "named", place, {scope: name})
            self.choices[scope] = name

    def _trials(self, run: Reference, index: int) -> tuple[list[Trial], list[str]]:
        """Candidates at the places of a line and of the next ones, and these lines."""
        window = list(run.lines)[index : index + 10]
        around = {run.lines[visit].key.place for visit in window[:6]}
        read = {run.lines[of].key.place for visit in window[:1] for of in run.lines[visit].inputs if of in run.lines}
        around |= {place for place in read if "/" not in place}  # such as the final norm, of logits
        near = {place.partition("/")[0] for place in around}
        places = [use for visit in window for use in run.uses.get(visit, ())]
        places += [use for used in run.uses.values() for use in used if use[0] in STRUCTURE and (use[1].partition("/")[0] in near or use[0] in ("extra_norm", "embedded_scale"))]  # fmt: skip
        places += [use for of in _forgotten(run, index) for use in run.uses.get(of, ()) if use[0] == "residual"]
        places = sorted(dict.fromkeys(places), key=lambda use: use[0] in RARE)
        trials = []
        for slot, place in places:
            now = run.name(slot, place)
            names = dict.fromkeys([*SLOTS[slot], *related(slot, now), *self.more.get(slot, ())])
            trials += [(slot, place, name) for name in names if name != now]
        return trials, window

    def _pairs(self, run: Reference, start: int, index: int, trials: list[Trial], *, is_taken: bool) -> Trials:
        """Two choices of the place that a line is in; `start`: where the lines begin that may be wrong, too."""
        ids = list(run.lines)
        place = run.lines[ids[index]].key.place
        end = next((i for i in range(index, len(ids)) if run.lines[ids[i]].key.place != place), len(ids))
        here = {use for visit in ids[start : end + 1] for use in run.uses.get(visit, ())}
        local = [t for t in trials if t[0] != "rotation" and t[:2] in here]
        if not is_taken:
            local += [t for t in trials if t[0] in ("order", "extra_norm", "norm_here") and t not in local]
        pairs = [pair for pair in itertools.combinations(local, 2) if pair[0][0] != pair[1][0]]
        if len(pairs) > PAIRS:
            self.cut[place] = f"{place}: only {PAIRS} of {len(pairs)} pairs of choices were tried"
        return pairs[:PAIRS]

    def _best(
        self, combinations: Trials, pins: Pins, base: int, run: Reference, *, instead: Any = None, ahead: Any = None
    ) -> New | None:
        """The choices that bring most lines in step; of equals, the nearest.

        `base`: the index of the line to be explained; `instead`: what could be taken as its value, which choices must
        then give; `ahead`: the choices of a run that looks ahead, in which equals are not judged by what follows.
        """
        look, choices, known = ahead is None, self.choices if ahead is None else ahead, set(score(run)[1])
        budget, ties, like = self._budget(run, base), [], self.run(choices, pins)
        visit, goal = list(run.lines)[base], instead[0].key.id if instead is not None else ""
        for most in sorted({min(budget), max(budget)} if look else {min(budget)}):
            for combination in combinations if not ties else ():
                if not any(use[:2] in like.asked for use in combination):
                    continue  # what reads it is known from the code
                new, uses = {f"{slot}@{place}": name for slot, place, name in combination}, [c[:2] for c in combination]
                held_to = self._before(uses, pins, like) if INSERTING & {slot for slot, _ in uses} else pins
                options = {"like": like, "new": uses, "goal": goal}
                try:
                    scout = self.run({**choices, **new}, held_to, most, **options, **self.rough)
                    if score(scout)[0] <= _index(scout, visit, base):
                        continue
                    trial = self.run({**choices, **new}, held_to, max(budget), **options)
                except ERRORS:
                    continue
                rank = self._rank(trial, _index(trial, visit, base), known, instead)
                if rank is not None and self._state(run, {**choices, **new}) not in self.been:
                    ties.append((rank, new))
        if not ties:
            return None
        every = [new for _, new in sorted(ties, key=lambda t: t[0], reverse=True)]
        top = max(rank for rank, _ in ties)
        ties = sorted((t for t in ties if t[0][:2] == top[:2] and t[0][2] >= top[2] - 0.5), key=lambda t: -t[0][2])
        best = self._farthest([new for _, new in ties[:4]], choices, pins) if len(ties) > 1 and look else ties[0][1]
        if look:
            self.apart = next(-rank[2] for rank, new in ties if new == best)
            self.others = [new for new in every if {*map(_slot, new)} != {*map(_slot, best)}][:FORKS]
        return best

    def _before(self, uses: list[tuple[str, str]], pins: Pins, like: Reference) -> Pins:
        """The pins of lines before the first that choices at some places change."""
        ids = list(like.lines)[: min(like.asked[use][1] for use in uses if use in like.asked)]
        return {visit: seen for visit, seen in pins.items() if visit in ids or visit in self.taken}

    def _farthest(self, ties: list[dict[str, str]], choices: Choices, pins: Pins) -> dict[str, str]:
        """The new choices that explain most a few departures later; of those with the same values, the case's own, or the
        ones that explain most if they hold everywhere.
        """
        distinct: dict[Any, tuple[Any, dict[str, str]]] = {}
        for new in ties:
            run = self.run({**choices, **new}, pins, LOOK)
            values = tuple(seen.value[0].tobytes() for seen in run.lines.values())
            is_own = all(name == run.base_name(*scope.split("@")) for scope, name in new.items())
            wide = self._scored({**choices, **{scope.partition("@")[0]: name for scope, name in new.items()}})[0]
            if values not in distinct or (is_own, wide) > distinct[values][0]:
                distinct[values] = (is_own, wide), new
        best, most = ties[0], -1.0
        for _, new in sorted(distinct.values(), key=lambda of: of[0][1], reverse=True):
            explained = self._lookahead({**choices, **new}, pins) if len(distinct) > 1 else np.inf
            best, most = (new, explained) if explained > most else (best, most)
            if most == np.inf:
                break
        return best

    def _scored(self, choices: Choices) -> tuple[int, list[str], int]:
        """The score of a run with choices that may make no sense somewhere, and minus the number of lines that it lacks."""
        try:
            run = self.run(choices, self.taken)
        except ERRORS:
            return 0, [], -(10**6)
        first, evidence = score(run)
        return first, evidence, first - len(run.lines)

    def _budget(self, run: Reference, base: int) -> tuple[int, int]:
        """Numbers of lines in a row that a run may miss before it is given up: some more than the code hides before, and
        how many it may hide where that says little.
        """
        gap = longest = 0
        for seen in list(run.lines.values())[:base]:
            gap = 0 if seen.match is not None else gap + 1
            longest = max(longest, gap)
        few = 4 * len(run.lines) // len(self.recording.tensors)  # a program that writes files shows a few lines only
        return max(6, longest + 3), max(few, longest + 3, 6 if base > 8 else 16)

    def _rank(self, trial: Reference, base: int, known: set[str], instead: Any) -> tuple[int, bool, float] | None:
        """A trial's score: newly found lines, whether the line itself, and how near they are."""
        (first, evidence), ids = score(trial), list(trial.lines)
        if first <= base or is_halfway(trial, ids[base], self.lost):
            return None
        match = trial.lines[ids[base]].match
        if instead is not None:
            goal, other = instead[0].match, trial.lines.get(instead[0].key.id)
            match = other.match if other is not None else None
            if match is None or not is_same(match, goal):
                return None
        matters = needed(trial)
        fresh = [visit for visit in evidence if visit not in known and visit in ids[base:first] and matters[visit]]
        fresh = [visit for visit in fresh if not is_repeated(trial, visit)]
        gained = [trial.lines[visit].apart for visit in fresh]
        if not gained or len(evidence) <= sum(visit in trial.lines for visit in known):
            return None  # a tensor that one line had is another's now; a trial may end before all lines
        return len(gained), match is not None, -float(np.mean(gained))

    def _lookahead(self, choices: dict[str, str], pins: Pins, depth: int = 4) -> float:
        """A trial's score after a few more departures."""
        run = self.run(choices, pins, LOOK)
        for _ in range(depth):
            ok, ids = in_step(run), list(run.lines)
            index = next((i for i, visit in enumerate(ids) if not ok[visit]), None)
            if index is None:
                return np.inf
            here = {visit: run.lines[visit] for visit in ids[:index] if run.lines[visit].match is not None} | dict(pins)
            trials = [(t,) for t in self._trials(run, index)[0]]
            best = self._best(trials, here, index, run, ahead=choices)
            if best is None:
                break
            choices = {**choices, **best}
            run = self.run(choices, pins, LOOK)
        return len(score(run)[1])

    def _widened(self, new: Mapping[str, str], run: Reference) -> Mapping[str, str]:
        """The same at this place of every layer, or everywhere, if that is as good; structure only if it is better."""
        local, evidence = score(self.run({**self.choices, **new}, self.taken))
        is_structure = any(scope.partition("@")[0] in STRUCTURE for scope in new)
        for wide in (lambda slot, place: f"{slot}@{kind_of(place)}", lambda slot, _: slot):
            other = {wide(*scope.split("@", 1)): name for scope, name in new.items() if "@" in scope} or dict(new)
            if other == dict(new) or self._state(run, {**self.choices, **other}) in self.been:
                continue
            first, found, _ = self._scored({**self.choices, **other})
            if first >= local and len(found) >= len(evidence) and (not is_structure or len(found) > len(evidence)):
                local, evidence, new = first, found, {**other}
                if all("@" not in scope for scope in new):
                    break
        return new

    def _simplify(self) -> None:
        """One departure in place of several of Algorithm 4, if it explains as much."""
        own = [d for d in self.departures if d.algorithm == 4 and d.kind == "named" and d.choices]
        if len(own) < 2:
            return
        less = {k: v for k, v in self.choices.items() if not any(k in d.choices for d in own)}
        goal, evidence = score(self.run(self.choices, self.taken))
        for slot, name in [(of, name) for of in OF_ATTENTION for name in list(SLOTS[of])[1:]]:
            try:
                run = self.run({**less, slot: name}, self.taken, 20)
            except ERRORS:
                continue
            first, found = score(run)
            users = (visit for visit, used in run.uses.items() if visit in run.lines and slot in dict(used))
            if first >= goal and len(found) >= len(evidence) and (user := next(users, None)) is not None:
                key = run.lines[user].key
                self.choices = {**less, slot: name}
                self.departures = [d for d in self.departures if d not in own]
                self._depart(key, SLOTS[slot][name].text, "named", "everywhere", {slot: name})
                return

    def _explained(self, choices: Choices) -> tuple[int, int]:
        """Minus the number of lines that a run lacks at its end, and the number of lines found."""
        _, evidence, lacking = self._scored(choices)
        return lacking, len(evidence)

    def _revise(self) -> None:
        """Take back what is not needed to explain as much, and widen choices that hold in several layers."""

        def is_as_good(choices: Choices) -> bool:
            return all(new >= own for new, own in zip(self._explained(choices), most, strict=True))

        most = self._explained(self.choices)
        unknown = {d.visit for d in self.departures if d.kind == "unknown"}
        for visit, seen in [item for item in self.taken.items() if item[0] in unknown]:
            del self.taken[visit]
            if is_as_good(self.choices):
                self.departures = [d for d in self.departures if d.choices or d.visit != visit]
            else:
                self.taken[visit] = seen
        for scope in list(self.choices):
            less = {other: name for other, name in self.choices.items() if other != scope}
            if is_as_good(less) or self._is_idle(less):
                self.choices, most = less, self._explained(less)
        for scope, name in list(self.choices.items()):
            slot, _, place = scope.partition("@")
            for wide in (f"{slot}@{kind_of(place)}", slot) if place else ():
                rest = {other: of for other, of in self.choices.items() if not _is_within(other, wide)}
                if len(rest) < len(self.choices) - 1 and is_as_good({**rest, wide: name}):
                    self.choices = {**rest, wide: name}
                    self.departures = [
                        dataclasses.replace(
                            d, choices={wide if _is_within(s, wide) else s: n for s, n in d.choices.items()}
                        )
                        for d in self.departures
                    ]

    def _is_idle(self, less: Mapping[str, str]) -> bool:
        """Whether the lines found with a choice that `less` lacks are read by lines that have no name alone: the code may
        compute the choice's value on its way to another.
        """
        unknown = {d.visit for d in self.departures if d.kind == "unknown"}
        if not unknown or self._explained(less)[0] < self._explained(self.choices)[0]:
            return False
        run, other = self.run(self.choices, self.taken), self.run(less, self.taken)
        found, left = ({v for v, seen in of.lines.items() if seen.match is not None} for of in (run, other))
        readers = [{v for v, seen in run.lines.items() if of in seen.inputs} for of in found - left]
        return bool(readers) and all(of and of <= unknown for of in readers)

    def _take(self, run: Reference, visit: str, pins: Pins) -> Taken | None:
        """A foreign tensor that the lines behind follow from, as the value of a line that no choice gives.

        Heads that are computed one by one are together behind their softmax only.
        """
        values = f"{run.lines[visit].key.place}:4.return"
        is_before = values in run.lines and visit.endswith((":4.5", ":4.return softmax"))
        return self._taken(run, visit, pins) or (self._taken(run, values, pins) if is_before else None)

    def _candidates(self, run: Reference, visit: str) -> Iterator[tuple[Group, np.ndarray]]:
        """The foreign tensors that no line has and that may be a line's value, and their numbers in its shape."""
        seen = run.lines[visit]
        value = seen.value[0] if seen.parts else seen.value[0][None]
        used = {(g.tensor.time, g.axis) for s in run.lines.values() if s.match is not None for g in s.match.groups}
        for group in self.finder.groups.get(value.shape[-1], ()):
            is_free = group.is_whole and (group.tensor.time, group.axis) not in used
            if is_free and len(group.rows) == np.prod(value.shape[:-1]):
                yield group, group.values(bool(np.isneginf(value).any())).reshape(value.shape)

    def _fitted(self, run: Reference, start: int, index: int, trials: list[Trial], pins: Pins) -> dict[str, str] | None:
        """A choice with a number that no list has: the one with which a line has a foreign tensor's numbers."""
        ids, tried = list(run.lines), {(slot, place) for slot, place, _ in trials if slot in FITTED}
        place, uses = run.lines[ids[index]].key.place, [use for v in ids[start:index] for use in run.uses.get(v, ())]
        found = {v: match.tensors for v in ids[:index] if (match := run.lines[v].match) is not None}
        known = {_numbers_of(t) for tensors in found.values() for t in tensors}
        here = [v for v in ids[index : index + 6] if run.lines[v].key.place == place]
        for visit in [*here, *_forgotten(run, index)]:
            of_line = [use for use in run.uses.get(visit, ()) if use in tried]
            if visit in here:
                uses, before = list(dict.fromkeys([*(use for use in uses if use in tried), *of_line])), found
            else:
                uses = [use for use in of_line if use[0] in INSERTING]
                before = {v: of for v, of in found.items() if v in ids[: ids.index(visit)]}
            since = max((t.time for tensors in before.values() for t in tensors), default=-1)
            held_to = {v: seen for v, seen in pins.items() if v in before or v in self.taken}
            *_, rows, columns = run.lines[visit].value.shape
            fresh: dict[Any, np.ndarray] = {}
            for group, theirs in self._candidates(run, visit):  # the transposed has other rows, too
                numbers_of = _numbers_of(group.tensor)
                if group.tensor.time > since and numbers_of not in known and len(fresh) < MOST_FITS:
                    fresh.setdefault((numbers_of, rows == columns and group.axis), theirs)
            fits = [((*use, name),) for use in uses for name in self._fit(use, visit, [*fresh.values()], held_to, run)]
            best = self._best(fits, pins, index, run) if fits else None
            if best is not None:
                return best
        return None

    def _fit(
        self, use: tuple[str, str], visit: str, arrays: list[np.ndarray], pins: Pins, like: Reference
    ) -> dict[str, None]:
        """Names of a choice with the numbers, rounded less and less, that bring a line nearest to one of some arrays."""
        slot, place = use
        forms, low, high = FITTED[slot]

        @functools.cache
        def value(name: str) -> np.ndarray | None:
            with contextlib.suppress(*ERRORS):
                options = {"like": like, "new": [use], "goal": visit, "finder": None}
                return self.run({**self.choices, f"{slot}@{place}": name}, pins, **options).lines[visit].value[0]
            return None

        def off(form: str, theirs: np.ndarray, known: np.ndarray, exponent: float) -> np.ndarray:
            mine = value(form.format(f"{10**exponent:.17g}"))
            if mine is None:
                return np.full(int(known.sum()), np.inf)
            return theirs[known] - np.nan_to_num(mine.reshape(theirs.shape)[known], nan=np.inf)

        found: dict[str, None] = {}
        of_place = [form or re.sub(r" \S+ ", " {} ", like.name(slot, place), count=1) for form in forms]
        for form, theirs in itertools.product(of_place, arrays):
            known = np.abs(theirs) < 1e100  # masked scores have no spread, whatever number stands for −∞
            spread = float(np.std(theirs[known], dtype=float)) if known.any() else 0.0
            by = functools.partial(off, form, theirs, known)
            found |= dict.fromkeys(form.format(n) for n in (_numbers(by, low, high, spread) if spread else ()))
        return found

    def _embedded(self, key: Key, theirs: np.ndarray) -> str:
        """Which tokens were embedded, if columns of W_e were and these are of others; else ""."""
        if (key.algorithm, key.line) != (1, "return"):
            return ""
        apart = np.abs(self.case.theta["W_e"][:, :, None] - theirs[0][:, None, :]).max(0)
        if apart.min(0).max() > 4 * self.epsilon:
            return ""
        x = apart.argmin(0).tolist()
        self.case = dataclasses.replace(self.case, inputs={**self.case.inputs, "x": x})  # of the loss behind, too
        return f"the tokens are {', '.join(map(str, x))}, not those of case.inputs"

    def _taken(self, run: Reference, visit: str, pins: Pins) -> Taken | None:
        seen, ids, best = run.lines[visit], list(run.lines), None
        value = seen.value[0] if seen.parts else seen.value[0][None]
        for group, values in self._candidates(run, visit):
            match = Match([group], [np.arange(len(group.rows))], 0.0, values if seen.parts else values[0], np.inf)
            taken = dataclasses.replace(seen, tolerance=0.0, match=match, form="taken as it is", read=None)
            trial = self.run(self.choices, {**pins, visit: taken}, 10)
            first, evidence = score(trial)
            behind = list(trial.lines)[ids.index(visit) + 1 : first]
            gained = sum(other in behind and other not in pins for other in evidence)
            if gained and (best is None or gained > best[0]):
                best = gained, taken, group
        if best is None:
            return None
        theirs, mine = (real(of, self.case.lengths) for of in (best[1].match.values.reshape(value.shape), value))
        text, tensor = measured(theirs, mine, seen.tolerance) or self._embedded(seen.key, theirs), best[2].tensor
        if text:
            return best[1], text, "named"
        text = f"is another, in no form of the catalogue: {tensor.name} {list(tensor.value.shape)}, from which the next lines follow"
        return best[1], text, "unknown"


def _index(trial: Reference, visit: str, base: int) -> int:
    """The index of a line in a trial; `base`: that in a run, since a choice may remove lines before it."""
    ids = list(trial.lines)
    return min(base, ids.index(visit) if visit in ids else base)


def _numbers(off: Callable[[float], np.ndarray], low: float, high: float, spread: float) -> list[str]:
    """The number, rounded less and less, at which an array is nearest to another; none if it is nowhere near.

    `off`: how far it is at a power of ten; `spread`: of the other's numbers.
    """

    def apart(exponent: float) -> float:
        return float(np.minimum(np.abs(off(exponent)), 1e6).mean())

    grid = np.linspace(np.log10(low), np.log10(high), 9)
    found = np.array([apart(x) for x in grid])
    best = int(found.argmin())
    if found[best] > 0.5 * spread or np.ptp(found) < 1e-9 * spread:
        return []
    around = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    found_at: Any = minimize_scalar(apart, bounds=around, method="bounded", options={"xatol": 1e-4})
    x = float(found_at.x)
    for _ in range(4):  # Newton's method, with a slope that is near
        r = off(x)
        slope = (r - off(x + 1e-4)) / 1e-4
        if not np.isfinite(r).all() or not slope @ slope > 0:
            return []
        x += float(slope @ r / (slope @ slope))
        if not grid[0] <= x <= grid[-1]:
            return []
    return list(dict.fromkeys(f"{10**x:.{digits}g}" for digits in (2, 3, 4, 6, 9, 15)))


def _numbers_of(tensor: Observed) -> bytes:
    """The numbers of a tensor in order, which its views have, too."""
    return np.sort(tensor.value, None).tobytes()


def _forgotten(run: Reference, index: int) -> list[str]:
    """Lines whose numbers a norm before a line may have forgotten a factor of: its mean or variance is not found."""
    near = list(run.lines.values())[max(0, index - LOOK) : index + 1]
    norms = [seen for seen in near if seen.match is None and seen.key.id.endswith((":6.1", ":6.2"))]
    return list(dict.fromkeys(of for seen in norms for of in seen.inputs if of in run.lines and ":6." not in of))


def _slot(scope: str) -> str:
    return scope.partition("@")[0]


def _is_within(scope: str, wide: str) -> bool:
    """Whether a scope speaks of nothing else than a wider one."""
    slot, _, place = scope.partition("@")
    return wide in scopes(slot, place)


def _text(slot: str, name: str) -> str:
    """A choice's sentence, or one about an added parameter."""
    if not name.startswith("extra:"):
        return choice(slot, name).text
    extra = f"the code's parameter {name.removeprefix('extra:')}"
    is_bias = slot.removesuffix("_bias") in BIASES
    return f"the bias is {extra}, which holds nothing of θ: load it" if is_bias else f"{extra} is added"
