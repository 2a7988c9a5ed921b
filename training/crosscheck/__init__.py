"""The cross-check: every numbered line of the paper's fifteen algorithms beside the code that executes it.

The shipped functions run eagerly while a tracing function reads their locals after each statement tagged `# line n`; so
does the NumPy oracle (`training.oracle`). What the two computed is compared, visit by visit: of every layer,
head, token and step. `scripts/crosscheck.py` is the command line; docs/crosscheck.md says how to read the result, and
`training.crosscheck.book` makes a book of it.

* `algorithms`   what the paper prints: the lines, their formulas (`latex`: for the book), their variables
* `tags`         which statements of a source file are tagged with which lines
* `tracing`      observing the tagged statements of a run
* `records`      the values of each line, of the oracle and of the code
* `values`       from tracers and lists to arrays that can be compared
* `scenarios`    what is run: inputs and parameters of every algorithm
* `variants`     the same of the published models, and `own` of models with custom lines
* `formulas`     the formulas that its record decides; `changes`: which of these are not the paper's
* `comparison`   matching the two records
* `results`      the verdicts; `stored`: kept in a directory; `report`: tables of these and of what `training.foreign` finds

Wrong edits that it must locate and name are in `tests.mutations`. Anybody's code is checked by `training.foreign`.
"""
