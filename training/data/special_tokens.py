"""The special tokens of a model that was trained elsewhere, which may have any IDs."""

from typing import Any, NamedTuple

from training.data.records import DataError


class SpecialTokens(NamedTuple):
    """The special tokens; the paper's are the last of the vocabulary."""

    N_V: int  # size of the model's vocabulary, which may be larger than its tokenizer's
    mask: int | None = None  # hides a token; None: the model has no such token, like the next two
    bos: int | None = None  # begins a generated text
    eos: int | None = None  # ends a generated text
    before: tuple[int, ...] = ()  # the tokens that the model reads before a text
    after: tuple[int, ...] = ()  # the tokens that the model reads after a text
    others: tuple[int, ...] = ()  # further IDs that never occur in text, such as padding
    ends: tuple[int, ...] = ()  # further IDs that end a generated text, besides eos

    def token(self, name: str) -> int:
        """Return a special token, or raise DataError if the model has no token of this name."""
        token = getattr(self, name)
        if token is None:
            raise DataError(f"the model has no {name} token, which this needs")
        return token

    def all(self) -> tuple[int, ...]:
        """Return the tokens that never occur in text."""
        own = {token for token in (self.mask, self.bos, self.eos) if token is not None}
        return tuple(sorted(own | {*self.before, *self.after, *self.others, *self.ends}))

    def to_json(self) -> dict[str, Any]:
        """Return the fields by name; `ends` only if not empty, since older files lack it."""
        fields = {name: list(value) if isinstance(value, tuple) else value for name, value in self._asdict().items()}
        return fields if self.ends else {name: value for name, value in fields.items() if name != "ends"}

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> "SpecialTokens":
        """Return the special tokens that `to_json` described."""
        fields: dict[str, Any] = {n: tuple(value) if isinstance(value, list) else value for n, value in state.items()}
        return cls(**fields)
