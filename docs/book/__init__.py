"""The cross-check as a book: pages for algorithms and published models, an index, and the source files they link to.

`python scripts/crosscheck.py --html DIR` writes it, or `make book`.

* `pages`      what each page says, and writing them
* `mathml`     formulas
* `listing`    the code, highlighted, and which of its lines does which line of the paper
* `stream`     the residual stream of Algorithm 10 as a picture
* `backward`   the hand-derived backward rules and their check
"""

from .pages import write_book

__all__ = ["write_book"]
