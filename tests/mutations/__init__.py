"""Wrong edits of the code, each of which a named test must catch, and the cross-check locate where it can see it.

    python -m tests.mutations               all of them; exit status 1 if one survives
    python -m tests.mutations "uphill" …    those
    python -m tests.mutations --list        their names, and the tests that each has to face
    python scripts/crosscheck.py --mutations   those that the cross-check must locate at their algorithm and line

Every edit is made in a scratch copy of the tree, never in the tree itself.

* `mutation`       what an edit is
* `table`          all of them, from the modules `of_…`
* `statements`     finding the statement that is edited
* `copies`         making one in a copy
* `runner`         the command, which runs the tests
"""

from .copies import apply, edited
from .mutation import Mutation
from .table import MUTATIONS

__all__ = ["MUTATIONS", "Mutation", "apply", "edited"]
