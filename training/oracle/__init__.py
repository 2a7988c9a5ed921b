"""The fifteen algorithms, transcribed literally into NumPy: the independent judge of the JAX code.

Written from the paper's pseudocode alone, and never from the code it judges: token loops, head loops and sums
are spelled out, nothing is fused, and nothing here imports JAX.

Conventions. Arrays, positions and token IDs start at 0; of N_V tokens the last three are mask_token,
bos_token and eos_token. A sequence is a list (or a one-dimensional array) of token IDs. Tokens are columns:
X is [d, length]. mask[t_z, t_x] is True where position t_x may attend to position t_z. Parameters are any
objects with the right attributes, with a *list* for heads and layers; `unstack` makes them from stacked ones.

Tracing. Each numbered line of the pseudocode is completed by the one statement that ends in the comment
`# line n` (`# return` for an unnumbered return); its result is a local variable with the paper's name
(x_tilde for x with a tilde). No array is changed once it has been assigned.

Derivatives. All functions are analytic and also work in complex arithmetic, so that a gradient is exact to
rounding: see `complex_step_gradient`.
"""

from .components import (
    attention,
    gelu,
    layer_norm,
    mh_attention,
    positional_embedding,
    relu,
    single_query_attention,
    sinusoidal_positional_embedding,
    softmax,
    token_embedding,
    unembedding,
)
from .inference import d_inference, e_inference, ed_inference
from .lines import rms_norm
from .parameters import flatten, rebuild, unstack
from .training import complex_step_gradient, d_loss, d_training, e_loss, e_training, ed_loss, ed_training
from .transformers import d_transformer, e_transformer, ed_transformer

__all__ = [
    "attention", "complex_step_gradient", "d_inference", "d_loss", "d_training", "d_transformer", "e_inference",
    "e_loss", "e_training", "e_transformer", "ed_inference", "ed_loss", "ed_training", "ed_transformer", "flatten", "gelu",
    "layer_norm", "mh_attention", "positional_embedding", "rebuild", "relu", "rms_norm", "single_query_attention",
    "sinusoidal_positional_embedding", "softmax", "token_embedding", "unembedding", "unstack",
]  # fmt: skip
