"""The cross-check as a book: pages for algorithms and published models, an index, and the source files they link to.

`python scripts/crosscheck.py --html DIR` or `make book` writes it.

* `pages`      contents of the pages
* `mathml`     formulas
* `listing`    highlighted code, with the lines of the paper that each line executes
* `backward`   the hand-derived backward rules and their check
"""

from .pages import page_of_model, write_book

__all__ = ["page_of_model", "write_book"]
