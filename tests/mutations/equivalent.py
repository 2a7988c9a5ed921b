"""Generated edits that no test can notice, since they change nothing that is promised."""

__all__ = ["EQUIVALENT"]

EQUIVALENT: dict[str, str] = {}
"""Name of an edit → why."""
