"""A self-contained HTML page on what a model does with a text: attention, predictions, attribution, patching, circuits.

    found = look(load_run("runs/docs"), "The cat sat on the")     # displays the page in a notebook
    found.html()                                                  # the page as a string
    show(seen, tokens)                                            # only the attention among recorded values

`look` in `content` computes everything; `page.html`, `page.css` and the scripts display it.
"""

from training.interpretability.page.content import look
from training.interpretability.page.look import Look, PageError, show

__all__ = ["Look", "PageError", "look", "show"]
