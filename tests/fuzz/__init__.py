"""Random cases without end: what is computed against the printed lines, and what is read against damage.

    python -m tests.fuzz --minutes 20                 every area in turn; exit status 1 if a case fails
    python -m tests.fuzz attention losses             these areas
    python -m tests.fuzz --seed 7 --state fuzz.json   resumes after the last case that fuzz.json names
    python -m tests.fuzz attention --seed 7 --case 40 that case again, with its traceback

Case n of an area is drawn from ``(seed, area, n)`` alone, so that its name is all that it takes to see it again.

* `attention`         sizes, masks and their conjunctions, dtypes: each implementation against "paper"
* `losses`            weights, N_V, smoothing, caps, sizes of chunks: against NumPy, and gradients against "paper"
* `transformations`   nestings of vmap, jit, checkpoint and lax.map around values, gradients and their gradients
* `files`             damaged runs, checkpoints and data: our sentence, never another error
* `requests`          damaged requests to the server: never its own error
* `runner`            the command
"""
