"""The paper's notation: the legend of axes and of arguments that functions share, and the special tokens.

Tokens are **columns** and weights are ``[d_out, d_in]``, so that ``W X + b 1ᵀ`` reads as printed. Token IDs start at 0.

=========  =============================================================================================
axis       meaning
=========  =============================================================================================
N_V        tokens of the vocabulary, the three special ones included (they are the last three)
l, l_x     tokens of the (primary) sequence; l_max is the longest one that the positions allow
l_z        tokens of the context sequence;  T tokens of the context of a single query
l_gen      tokens to generate
d_e        dimensions of an embedding, which is a column of the residual stream
d_x, d_z   rows of the primary and of the context matrix of an attention
d_attn     dimensions of a query and of a key
d_mid      dimensions of a value;  d_out dimensions of an attention's output
d_mlp      hidden units of a layer's MLP;  d_f rows after the final projection of Algorithm 9
H, L       heads;  layers (L_enc, L_dec of the encoder and of the decoder)
N_data     sequences of a data set;  N_epochs passes over it
*batch     any number of axes, none for the paper's one sequence. They follow the rows of a matrix and
           precede everything else: ``X: [d_x, *batch, l]``, ``x: [*batch, l]``, ``mask: [*batch, l_z, l_x]``
*#batch    the same, or left out: then one serves the whole batch
=========  =============================================================================================

In a pytree of parameters the arrays of the heads are stacked on axis 0, and those of the layers in front of that.

==============  ========================================================================================
argument        meaning, wherever it appears
==============  ========================================================================================
theta           θ, all parameters of a transformer; ``init_…`` makes them
mask            True where token t_x may attend to context token t_z: a structural mask such as
                ``UNIDIRECTIONAL``, or booleans
length          how many tokens, from the first, are not padding; None for all. What stands behind them is
                never read, and what comes out there means nothing
variant         what a published model changes in the pseudocode; ``PAPER`` changes nothing
implementation  how attention and the backward passes are computed, one of ``IMPLEMENTATIONS``
dropout         probability to drop an attention weight
key             randomness, a typed key (``jax.random.key``), one for each sequence of a batch; it is consumed
remat           what a layer computes again in the backward pass, instead of keeping it: nothing (False), all (True),
                or ``"all but attention"``, which keeps what attention's kernel gave, so that it runs once
==============  ========================================================================================

Invalid input raises when a function is traced, with what was expected, what came, and what to do: ``TypeError`` for a
value of another kind, ``ValueError`` for a shape or a value that does not fit. A token ID outside [0, N_V) cannot be
raised in compiled code: it gives NaN, never another token's embedding.

A docstring says what is special about its function: the paper's line, where the code departs from the paper, and the
source. "Phuong and Hutter 2022" is the paper, "Formal Algorithms for Transformers", arXiv:2207.09238. The backward
passes follow "Transformer and GPT", incml.github.io/2023/03/05/Transformer-GPT (cited as incml 2023), in matrix form,
and Valentin Radu, "Vectors of Meaning", vom.radval.me, 2026 (cited as Radu 2026), component by component.
"""

import typing
from typing import Literal

Remat = Literal[False, True, "all but attention"]

Implementation = Literal["auto", "paper", "dense", "blockwise", "cudnn", "pallas"]

IMPLEMENTATIONS: tuple[str, ...] = typing.get_args(Implementation)
"""Names of the implementations.

* ``"paper"``: the lines as printed, differentiable by JAX to any order and in forward mode;
* ``"dense"``: the backward pass derived by hand, keeping the softmax matrix;
* ``"blockwise"``: likewise, with an online softmax, keeping only the log-sum-exp: O(ℓ) memory;
* ``"cudnn"``: cuDNN's kernel, on an NVIDIA GPU;
* ``"pallas"``: the kernel shipped with JAX for TPUs;
* ``"auto"``: the fastest exact one for the given input, by the table in ``algorithms.ops.attention.dispatch``.

With each of them but ``"paper"``, all other backward passes are those derived by hand too.
"""


def mask_token(N_V: int) -> int:
    """ID of the token that hides another one in Algorithm 12 (the paper's ``N_V − 2``, counted from 0)."""
    return N_V - 3


def bos_token(N_V: int) -> int:
    """ID of the token that begins a sequence (the paper's ``N_V − 1``, counted from 0)."""
    return N_V - 2


def eos_token(N_V: int) -> int:
    """ID of the token that ends a sequence (the paper's ``N_V``, counted from 0)."""
    return N_V - 1
