r"""Prompting methods for a trained decoder: few-shot examples, a scratchpad, a majority vote.

A scratchpad is what the model writes before its answer; the answer is the text after the last `after` of a line.
"""

import collections
from collections.abc import Sequence
from pathlib import Path

from training.data.records import DataError
from training.disk import local_path, read_text, reason
from training.generation.text import Answer, Answerer

TAB, NEWLINE = "\t", "\n"


def read_shots(path: str | Path) -> str:
    """Read a file of examples, lines of source TAB target, without its empty lines. Raises DataError."""
    try:
        lines = read_text(local_path(path)).splitlines()
    except (OSError, ValueError) as error:
        why = reason(error) if isinstance(error, OSError) else str(error)
        raise DataError(f"--shots: cannot read {path}: {why}") from None
    shots = {number: line for number, line in enumerate(lines, 1) if line.strip()}
    for number, line in shots.items():
        source, tab, target = line.partition(TAB)
        if not (tab and source and target) or TAB in target:
            raise DataError(f"{path}:{number}: expected source TAB target, got {line[:60]!r}")
    if not shots:
        raise DataError(f"--shots: expected lines of source TAB target, got none in {path}")
    return "".join(line + NEWLINE for line in shots.values())


def few_shot(shots: str, text: str) -> str:
    """Return a prompt: the examples, one per line, and then the text, whose target the model is to write."""
    if NEWLINE in text or TAB in text:
        raise DataError(f"--shots: expected prompts of one line without TAB, got {text[:60]!r}; give one per line")
    return shots + text + TAB


def final_answer(text: str, after: str | None) -> str | None:
    """Return the answer in a text: all of it, or the rest of the line after the last `after`, None if there is none."""
    if after is None:
        return text.strip()
    _, found, rest = text.rpartition(after)
    return rest.partition(NEWLINE)[0].strip() if found else None


def majority(answers: Sequence[Answer], after: str | None) -> Answer:
    """Return the most frequent final answer (the first of these in a tie) as "text", with "votes", "voters", and the
    first text that has it as "scratchpad". Texts without `after` do not vote; see `final_answer`.
    """
    votes = [(final_answer(answer["text"], after), answer["text"]) for answer in answers]
    counts = collections.Counter(vote for vote, _ in votes if vote is not None)
    if not counts:
        return {"text": "", "votes": 0, "voters": 0, "scratchpad": answers[0]["text"] if answers else ""}
    winner, n = counts.most_common(1)[0]
    scratchpad = next(text for vote, text in votes if vote == winner)
    return {"text": winner, "votes": n, "voters": counts.total(), "scratchpad": scratchpad}


class MajorityVote(Answerer):
    """An answerer that takes a majority vote over n answers to each text."""

    def __init__(self, answerer: Answerer, *, after: str | None = None) -> None:
        """Vote among the answers of another answerer; see `final_answer`. Raises DataError if it gives one per text."""
        if answerer.n < 2:
            raise DataError(f"--vote: expected several answers to vote, got {answerer.n}; give --n 15, for example")
        vars(self).update(vars(answerer), takes_lines=answerer.takes_lines)
        self._answerer, self._after = answerer, after

    def heals(self, text: str) -> bool:
        """See `Answerer.heals`."""
        return self._answerer.heals(text)

    def answers(self, texts: Sequence[str], *, first: int = 1) -> list[list[Answer]]:
        """Return one answer to each text, with its votes; see `Answerer.answers`."""
        return [[majority(found, self._after)] for found in self._answerer.answers(texts, first=first)]
