"""Output on a terminal, which would obey the control characters that a model's text may contain."""

import contextlib
import datetime
import json
import re
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, Self, TextIO

from tqdm import tqdm

UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters except tab and line feed, and those that change the direction of writing."""


def visible(text: str) -> str:
    """Return the text with unsafe characters as their escapes."""
    return UNSAFE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def show(text: str, *, end: str = "\n", file: TextIO | None = None) -> None:
    """Print a model's text, made visible on a terminal and unchanged to files and pipes."""
    stream: TextIO = file or sys.stdout
    print(visible(text) if stream.isatty() else text, end=end, file=stream, flush=True)


def say(text: str, *, dated: bool = False) -> None:
    """Print a message for the user on standard error."""
    now = f"{datetime.datetime.now().astimezone().isoformat(sep=' ', timespec='seconds')} " if dated else ""
    show(now + text, file=sys.stderr)


def print_table(headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table of numbers; None is an empty cell."""
    from tabulate import tabulate

    print(tabulate(rows, headers=headers, tablefmt="plain", floatfmt=".4f", disable_numparse=[0]), flush=True)


def print_json(prompt: str, answers: list[Any]) -> None:
    """Print a prompt and its answers as one line of JSON; bytes of the prompt that are not UTF-8 become U+FFFD."""
    prompt = prompt.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    print(json.dumps({"prompt": prompt, "answers": answers}, ensure_ascii=False), flush=True)


@contextlib.contextmanager
def waiting(what: str, *, after: float = 5.0, lines: bool = False) -> Iterator[None]:
    """Show what the body does after `after` seconds: on a terminal, or elsewhere with `lines`, ever more seldom."""
    ended, begun = threading.Event(), time.monotonic()

    def show() -> None:
        pause, bar = after, None
        while not ended.wait(pause):
            passed = time.monotonic() - begun
            text = f"{what}, {tqdm.format_interval(passed)}"
            if sys.stderr.isatty():
                bar, pause = bar or tqdm(bar_format="{desc}", leave=False, dynamic_ncols=True), 1.0
                bar.set_description_str(text)
            elif lines:
                say(text, dated=True)
                pause = passed
        if bar is not None:
            bar.close()

    shower = threading.Thread(target=show, daemon=True)
    shower.start()
    try:
        yield
    finally:
        ended.set()
        shower.join()


class Bar:
    """A progress bar: on a terminal, after a second; elsewhere a line `every` so many seconds, or nothing (None)."""

    def __init__(self, what: str, *, every: float | None = None, **shown: Any) -> None:
        self._shown = {"desc": what, "leave": False, "delay": 1, "dynamic_ncols": True, **shown}
        self._bar: tqdm | None = None
        self._every, self._done, self._begun = every, 0, time.monotonic()
        self._said = self._begun

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()

    def advance(self, n: int, total: int) -> None:
        """Advance by n, of `total` (0: unknown)."""
        self._done += n
        if sys.stderr.isatty():
            self._bar = self._bar or tqdm(total=total or None, **self._shown)
            self._bar.update(n)
        elif self._every is not None and (now := time.monotonic()) - self._said >= self._every and self._done:
            self._said, seconds = now, now - self._begun
            left = f", {tqdm.format_interval(seconds / self._done * (total - self._done))} left" if total else ""
            say(f"{self._shown['desc']}: {self._done} of {total or 'an unknown number'}{left}", dated=True)
