"""Everything needed to use the algorithms: data, objectives over batches, optimizers, checkpoints, generation.

run = training.train("d", run="runs/mine", data="book.txt", steps=500)    # as train.py does
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from training.commands.in_python import train

__all__ = ["train"]


def __getattr__(name: str) -> Any:
    """Import `train`, and all that training needs, when it is used."""
    if name == "train":
        from training.commands import in_python

        return in_python.train
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
