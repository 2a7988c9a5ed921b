"""The error that every module here raises."""


class InterchangeError(ValueError):
    """A checkpoint cannot be read or written; the message is one sentence."""
