"""The paper's notation: the legend of the axes and of the shared arguments, and the special tokens.

Tokens are **columns** and weights are ``[d_out, d_in]``, so that ``W X + b 1ᵀ`` reads as printed. Token IDs start at 0.

=========  =============================================================================================
axis       meaning
=========  =============================================================================================
N_V        vocabulary size, including the three special tokens, which come last
l, l_x     tokens of the (primary) sequence;  l_max their largest number
l_z        tokens of the context sequence;  T those of the context of a single query
l_gen      tokens to generate
d_e        dimensions of an embedding, which is a column of the residual stream
d_x, d_z   rows of the primary and of the context matrix of an attention
d_attn     dimensions of a query and of a key
d_mid      dimensions of a value;  d_out those of an attention's output
d_mlp      hidden units of a layer's MLP;  d_f rows after the final projection of Algorithm 9
d_in       rows of W_e, W_p and W_t if a variant projects them by W_in; otherwise they have d_e
H, L       heads;  layers (L_enc in the encoder, L_dec in the decoder); in θ, layers that share parameters count once
N_data     sequences of a data set;  N_epochs passes over it
*batch     any number of axes, none for the paper's one sequence. They follow the rows of a matrix and
           precede everything else: ``X: [d_x, *batch, l]``, ``x: [*batch, l]``, ``mask: [*batch, l_z, l_x]``
*#batch    the same axes, or none if one array serves the whole batch
=========  =============================================================================================

In a pytree of parameters, heads are stacked on axis 0 of their arrays, and layers in front of that.

==================  =====================================================================================
argument            meaning, wherever it appears
==================  =====================================================================================
v                   a token ID, or several
l                   a position, or several
x                   token IDs of the (primary) sequence; in training, a row for each sequence. In Algorithms 8 to 10,
                    columns of embeddings may stand in for those of tokens, ``W_e[:, x[t]]`` (times a factor,
                    if the variant has one); positions, types and a norm are then applied as usual
z                   token IDs of the context sequence; in training, a row for each sequence
X                   the (primary) sequence, tokens as columns
Z                   the context sequence, tokens as columns
e                   activations of a token, or of several, as columns
E                   activations of the context tokens, as columns
Q, K, V             queries, keys and values, as columns
W_qkv               𝓦_qkv, the projections of a head
W                   𝓦, the projections of all heads, and W_o
W_e                 the embeddings of the tokens, as columns
W_p                 the embeddings of the positions, as columns
W_u                 the unembedding matrix
gamma, beta         γ and β of a norm
b_u                 an output bias, added to the logits; None: no bias
targets             for each column, the ID of the token to predict
weights             the weight of each column's loss; None: 1 for all
label_smoothing     s: the target is mixed as 1 − s of the token to predict and s/N_V of every token
N_V                 number of tokens, if the last rows of W_u are padding; None: no row is
cap                 c: logits y become c tanh(y/c); None: no cap
theta               θ, all parameters of a transformer, as ``init_…`` makes them
mask                True where token t_x may attend to context token t_z: a structural mask such as
                    ``UNIDIRECTIONAL``, or booleans
z_mask              the mask of the context's attention to itself
cross_mask          the mask of the primary sequence's attention to the context
length              number of tokens before the padding, of the (primary) sequence, or of each; None: there is no
                    padding. Later positions are never read; their outputs are meaningless
z_length            number of tokens before the padding of a context, or of each; None: there is no padding
types               types of the tokens, such as BERT's first and second sentence; None: all have type 0
positions           positions of the columns; None: 0, 1, 2, …, in each document
segments            the number of each token's document, a run of equal numbers; tokens do not see other documents.
                    None: all are one document
z_segments          the number of each context token's document, as segments
implementation      how attention and the backward passes are computed, one of ``IMPLEMENTATIONS``
dropout             probability of dropping an attention weight; above 0 it needs a key
cache               the KV cache, as ``empty_cache`` makes it
n                   number of tokens that were read before, of all sequences or of each
key                 randomness: a typed key (``jax.random.key``), one per sequence of a batch; it is consumed
remat               what a layer's backward pass recomputes instead of storing: False, nothing, or on a GPU norms and
                    activations where this is faster; True, everything;
                    ``"all but attention"``, everything but the attention kernel; ``"all but products"``, only
                    norms, activations and W_o's product: queries, keys, values and the MLP's products are
                    stored, too
unroll              whether to unroll the loop over the layers: the program runs faster, and takes longer to compile
epsilon             ε, added to the variance in a norm; 0 in the paper
tau                 temperature τ: 0 picks the likeliest token, 1 samples faithfully, inf uniformly
eta                 learning rate η
N_epochs            passes over the data
p_mask              probability of masking a token
l_gen               number of tokens to generate
l_max               the longest output, in tokens; None: as long as the parameters allow
==================  =====================================================================================

The types below say which values are allowed. Invalid input raises an error when a
function is traced, saying what was expected, what came, and what to do: ``TypeError`` for the wrong kind of value,
``ValueError`` for the wrong shape or an invalid value. The values of numbers and NumPy arrays are checked at every
call, those of JAX arrays only on a CPU: no check copies from an accelerator (``jax.device_get`` does). Compiled code
cannot raise for a token ID outside [0, N_V): it yields NaN, never another token's embedding.

A docstring adds what is specific to its function: the paper's line, its departures from the paper, and the source,
unless that is the numbered algorithm. Examples follow ``from algorithms import *`` and
``import jax, jax.numpy as jnp``. "Phuong and Hutter 2022" is the paper, "Formal Algorithms for Transformers",
arXiv:2207.09238. The backward passes follow "Transformer and GPT", incml.github.io/2023/03/05/Transformer-GPT (cited
as incml 2023), in matrix form, and Valentin Radu, "Vectors of Meaning", vom.radval.me, 2026 (cited as Radu 2026),
component by component.
"""

import typing
from typing import Annotated, Literal, TypedDict

from jax import Array
from jaxtyping import Float, Integer, Key

from algorithms.machinery.arrays import AnyArray
from algorithms.machinery.contract import Default, UpTo
from algorithms.machinery.record import Positive, Range

# fmt: off
Length         = Annotated[Integer[AnyArray, "*#batch"] | int | None, UpTo("l")]
ContextLength  = Annotated[Integer[AnyArray, "*#batch"] | int | None, UpTo("l_z")]
PrimaryLength  = Annotated[Integer[AnyArray, "*#batch"] | int | None, UpTo("l_x")]
Lengths        = Annotated[Integer[AnyArray, "N_data"] | None, UpTo("l")]    # one per sequence of a data set
ContextLengths = Annotated[Integer[AnyArray, "N_data"] | None, UpTo("l_z")]
PrimaryLengths = Annotated[Integer[AnyArray, "N_data"] | None, UpTo("l_x")]
OptionalKey    = Key[Array, "*batch"] | None
Dropout        = Annotated[float, Range("a probability in [0, 1)", lambda p: 0 <= p < 1)]
Epsilon        = Annotated[float, Range("a number >= 0", lambda epsilon: epsilon >= 0)]
Temperature    = Annotated[float | Float[AnyArray, "*#batch"],  # one for all sequences, or one each
                           Range("a temperature >= 0 (0 is greedy, inf is uniform)", lambda tau: tau >= 0)]
Cap            = Positive | None
Base           = Annotated[float, Range("a number > 1", lambda base: base > 1)]  # of a sinusoid's wavelengths
Rate           = Annotated[float | Float[AnyArray, ""], Range("a learning rate >= 0", lambda eta: eta >= 0)]
Probability    = Annotated[float | Float[AnyArray, ""], Range("a probability in (0, 1)", lambda p: (p > 0) & (p < 1))]
Share          = Annotated[float, Range("a share in [0, 1)", lambda s: 0 <= s < 1)]
Epochs         = Annotated[int, Range("at least 0", lambda n: n >= 0)]
Count          = Annotated[int, Range("at least 1", lambda n: n >= 1)]
# fmt: on

Remat = Literal[False, True, "all but attention", "all but products"]
Unroll = Literal[False, True]

Implementation = Literal["auto", "paper", "dense", "blockwise", "strips", "cudnn", "pallas"]

IMPLEMENTATIONS: tuple[str, ...] = typing.get_args(Implementation)
"""Names of the implementations.

* ``"paper"``: the lines as printed, differentiable by JAX to any order and in forward mode;
* ``"dense"``: a backward pass derived by hand, which stores the softmax matrix;
* ``"blockwise"``: an online softmax, with a backward pass by hand that stores only the log-sum-exp: O(ℓ) memory;
* ``"strips"``: the same memory, for CPUs: a few queries at a time, with all their keys;
* ``"cudnn"``: cuDNN's kernel, on an NVIDIA GPU;
* ``"pallas"``: the kernel shipped with JAX for TPUs;
* ``"auto"``: the fastest exact one for the given input, by the table in ``algorithms.ops.attention.dispatch``.

Except with ``"paper"``, the backward passes of all other operations are derived by hand, too.
"""


class Choice(TypedDict, total=False):
    """The option of everything that contains an implementation to choose."""

    implementation: Annotated[Implementation, Default("auto")]


class PrintedChoice(TypedDict, total=False):
    """The same of a function that by itself leaves its derivative to JAX."""

    implementation: Annotated[Implementation, Default("paper")]


class Options(Choice, total=False):
    """Options of attention, and of everything that contains it."""

    dropout: Annotated[Dropout, Default(0.0)]
    key: Annotated[OptionalKey, Default(None)]


class LoopOptions(Options, total=False):
    """Options of what contains the loop over the layers."""

    remat: Annotated[Remat, Default(False)]
    unroll: Annotated[Unroll, Default(False)]


def mask_token(N_V: int) -> int:
    """ID of the token that masks others in Algorithm 12 (the paper's ``N_V − 2``, counted from 0)."""
    return N_V - 3


def bos_token(N_V: int) -> int:
    """ID of the token that starts a sequence (the paper's ``N_V − 1``, counted from 0)."""
    return N_V - 2


def eos_token(N_V: int) -> int:
    """ID of the token that ends a sequence (the paper's ``N_V``, counted from 0)."""
    return N_V - 1
