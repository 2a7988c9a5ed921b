"""The cross-check as a book: a page for each algorithm, an index, and the source files that the pages link to.

* `pages`      what each page says, and writing them
* `mathml`     formulas
* `listing`    the code, highlighted, and which of its lines does which line of the paper
* `stream`     the residual stream of Algorithm 10 as a picture
* `backward`   the hand-derived backward rules and their check
"""

from .pages import write_book

__all__ = ["write_book"]
