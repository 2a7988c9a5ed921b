"""Look inside: record and replace the values of the numbered lines, by the paper's names.

Function transformations in the style of ``jax.grad``, for any function that calls the algorithms::

    P, seen = record(d_transformer, "A", "X@6", at("X@8", layer=-1))(x, theta)
    P = intervene(d_transformer, {at("Y@2", layer=1, head=5): 0.0})(x, theta)
    loss, seen, gradient = gradients(loss, "A", "X@6")(theta)
    intermediates(d_transformer)(x, theta)

A name is ``symbol@line``: the value that a line assigns, with the line number of the innermost algorithm. The line may
be left out if only one line assigns the symbol. Lines of callers may follow: ``S@5/16`` is S of line 5 in the attention
that line 16 calls, ``A/16`` its A.

Recorded values have the axes ``[layers, H, rows, *batch, columns]``, and S and A ``[layers, H, l_z, *batch, l_x]``; the
axes of layers and heads are there only if the line is in their loops. Any other enclosing loop adds a leading axis.
Layers count from 0.
"""

# fmt: off
# ruff: noqa: I001
from algorithms.inside.names import At as At, at as at
from algorithms.inside.transformations import Intermediate as Intermediate
from algorithms.inside.transformations import Recorded as Recorded
from algorithms.inside.transformations import gradients as gradients, intermediates as intermediates
from algorithms.inside.transformations import intervene as intervene, record as record
