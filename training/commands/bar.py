"""A progress bar."""

import sys
from typing import Any, Self

from tqdm import tqdm


class Bar:
    """A progress bar: shown on a terminal, after a second, and nowhere else."""

    def __init__(self, what: str, **shown: Any) -> None:
        self._shown = {"desc": what, "leave": False, "delay": 1, "dynamic_ncols": True, **shown}
        self._bar: tqdm | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def advance(self, n: int, total: int) -> None:
        """Advance by n, of `total` (0: unknown)."""
        if sys.stderr.isatty():
            self._bar = self._bar or tqdm(total=total or None, **self._shown)
            self._bar.update(n)
