"""Wrong edits of the code, each of which the tests must catch.

    python -m tests.mutations               all of them; a second time, those that are new or whose code or tests have
                                            changed; exit status 1 if one survives that is not listed as equivalent
    python -m tests.mutations --sample 40   some of them, drawn with --seed
    python -m tests.mutations NAME …        those
    python -m tests.mutations --list        their names, and the tests that each has to face
    python -m tests.mutations --located     instead: planted bugs, each of which the cross-check must locate at its
                                            algorithm and line, and name; with NAME … those

Every edit is made in a scratch copy of the tree, never in the tree itself (`edits`).

* `generated`      those that rules make of the statements of algorithms/
* `by_hand`        those of the rest
* `facing`         which tests they face
* `equivalent`     those that change nothing, with the reason
* `planted`        those that the cross-check must locate; `located`: whether it does
* `runner`         the command
* `server`         the processes that run the tests
"""
