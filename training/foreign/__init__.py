"""Which line is wrong? For anybody's transformer, in any language: see docs/crosscheck.md.

* `cases`, `making`   a case: random θ, inputs, and what every line computes from them; as files
* `catalogue`         the choices: what may stand at each place of a formula, and what they compute
* `vocabulary`        named variants in these words, and θ by the paper's names
* `run`, `parts`, `attention`, `reference`    Algorithms 4 to 10 with any of these choices
* `recording`         what PyTorch, JAX, NumPy or any other language computed, with nothing named
* `loading`           θ in foreign parameters
* `huggingface`       transformers' own code of a kind of model, by its name
* `match`             a line's value among foreign tensors
* `evidence`          which lines of a run are explained, and by what
* `diagnose`          the walk through the lines, which names departures; `fitting`: numbers that no list has; `telling`: its result
* `beside`            two programs, one beside the other
* `learning`          loss, gradients, updates, sampling, decoding
* `checking`          all of it in one call; `report`, `page`: its result for a terminal, a test or a browser
"""

from .checking import check
from .huggingface import from_transformers
from .loading import load
from .recording import GlueError, Recording, record_arrays, record_jax, record_numpy, record_torch, record_torch_parts

__all__ = [
    "GlueError", "Recording", "check", "from_transformers", "load", "record_arrays", "record_jax", "record_numpy",
    "record_torch", "record_torch_parts",
]  # fmt: skip
