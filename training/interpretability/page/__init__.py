"""One self-contained page of what a model does with a text: attention, predictions, attribution, patching, circuits.

    from training.interpretability.page import look
    found = look(load_run("runs/docs"), "The cat sat on the")
    found                                # in a notebook, the page
    found.html()                         # its text
    pictures(found)                      # the same as PNGs, by name
    show(seen, tokens)                   # what was recorded: its attention alone

`look` computes, in `content`; `page.html`, `page.css` and the scripts show it; `packed` carries the numbers between
them.
"""

from training.interpretability.page.content import look
from training.interpretability.page.look import Look, PageError
from training.interpretability.page.pictures import pictures
from training.interpretability.page.recorded import show

__all__ = ["Look", "PageError", "look", "pictures", "show"]
