"""Which line is wrong? For anybody's transformer, in any language: see docs/crosscheck.md.

* `cases`, `making`   a case: random θ, inputs, and what every line computes from them; as files; named variants
* `catalogue`         the choices: what may stand at each place of a formula, and what they compute
* `run`, `parts`, `attention`, `reference`    Algorithms 4 to 10 with any of these choices
* `recording`         what PyTorch, JAX, NumPy or any other language computed, with nothing named
* `loading`           θ in foreign parameters
* `match`             a line's value among foreign tensors
* `evidence`          which lines of a run are explained, and by what
* `diagnose`          the walk through the lines, which names departures
* `learning`          loss, gradients, updates, sampling, decoding
* `checking`          all of it in one call, also of transformers' own code, and of two programs beside each other
* `report`            its result for a terminal, a test or a browser
"""

from .checking import check, from_transformers
from .loading import load
from .recording import GlueError, Recording, record_arrays, record_jax, record_numpy, record_torch, record_torch_parts

__all__ = [
    "GlueError", "Recording", "check", "from_transformers", "load", "record_arrays", "record_jax", "record_numpy",
    "record_torch", "record_torch_parts",
]  # fmt: skip
