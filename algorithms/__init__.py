"""Phuong and Hutter's "Formal Algorithms for Transformers" (2022), executable: the table of contents.

Each of the paper's fifteen numbered algorithms is one pure, compiled JAX function over pytrees of parameters, in the
paper's notation: tokens are columns, and weights are ``[d_out, d_in]``. The legend is in ``algorithms.notation``.
"""

from algorithms import lines
from algorithms import relations as relations
from algorithms.alg01_embedding import positional_embedding, sinusoidal_positional_embedding, token_embedding
from algorithms.alg03_attention import attention, mh_attention, scaled_dot_product_attention, single_query_attention
from algorithms.alg06_layer_norm import layer_norm, rms_norm
from algorithms.alg07_unembedding import unembedding
from algorithms.alg08_ed_transformer import (
    ed_decoding,
    ed_encoding,
    ed_hidden_state,
    ed_transformer,
)
from algorithms.alg09_e_transformer import e_encoding, e_hidden_state, e_transformer
from algorithms.alg10_d_transformer import d_hidden_state, d_transformer
from algorithms.alg11_training import d_training, e_training, ed_training
from algorithms.alg14_inference import d_inference, ed_inference
from algorithms.gato import (
    GatoConfig,
    GatoParams,
    PatchParams,
    discretize,
    gato_embedding,
    init_gato,
    inverse_mu_law,
    mu_law,
    patch_embedding,
    raster_patches,
    raster_places,
    undiscretize,
)
from algorithms.losses import d_token_losses, e_token_losses, ed_token_losses
from algorithms.machinery.contract import REGISTRY
from algorithms.machinery.platform import for_platform
from algorithms.machinery.sharding import mesh_axes
from algorithms.masks import BIDIRECTIONAL, UNIDIRECTIONAL, banded, documents, padding
from algorithms.model.initialization import (
    count_params,
    init_d_transformer,
    init_e_transformer,
    init_ed_transformer,
)
from algorithms.model.sizes import DTransformerConfig, EDTransformerConfig, ETransformerConfig
from algorithms.model.theta import DTransformerParams, EDTransformerParams, ETransformerParams
from algorithms.model.variant import Variant
from algorithms.model.variants import (
    ALBERT,
    BART,
    BERT,
    BLOOM,
    FSMT,
    GEMMA,
    GEMMA2,
    GEMMA3,
    GOPHER,
    GPT2,
    GPT3,
    GPT_NEO,
    LLAMA,
    MARIAN,
    MISTRAL,
    NEOX,
    OLMO2,
    OPT,
    PAPER,
    QWEN2,
    QWEN3,
    ROBERTA,
    T5,
    VARIANTS,
    VASWANI,
)
from algorithms.notation import IMPLEMENTATIONS, bos_token, eos_token, mask_token
from algorithms.ops.activation import gelu, gelu_tanh, relu
from algorithms.ops.log_loss import log_loss, token_losses
from algorithms.parameters import (
    AttentionParams,
    EDDecoderLayerParams,
    LayerNormParams,
    MHAttentionParams,
    MLPParams,
    TransformerLayerParams,
)

# fmt: off
__all__ = [
    # Algorithms 1 to 15
    "token_embedding", "positional_embedding", "single_query_attention", "attention", "mh_attention", "layer_norm",
    "unembedding", "ed_transformer", "e_transformer", "d_transformer", "ed_training", "e_training", "d_training",
    "d_inference", "ed_inference",
    # Building blocks and intermediate results
    "scaled_dot_product_attention", "rms_norm", "ed_hidden_state", "ed_encoding", "ed_decoding", "e_hidden_state",
    "e_encoding", "d_hidden_state", "log_loss", "token_losses", "d_token_losses", "e_token_losses", "ed_token_losses",
    # Gato
    "GatoConfig", "GatoParams", "PatchParams", "discretize", "gato_embedding", "init_gato", "inverse_mu_law", "mu_law",
    "patch_embedding", "raster_patches", "raster_places", "undiscretize",
    # Masks, parameters, variants and the legend
    "ALBERT", "BART", "BERT", "BIDIRECTIONAL", "BLOOM", "FSMT", "GEMMA", "GEMMA2", "GEMMA3", "GOPHER", "GPT2", "GPT3",
    "GPT_NEO", "IMPLEMENTATIONS", "LLAMA", "MARIAN", "MISTRAL", "NEOX", "OLMO2", "OPT", "PAPER", "QWEN2", "QWEN3",
    "REGISTRY", "ROBERTA", "T5", "UNIDIRECTIONAL", "VARIANTS", "VASWANI", "lines",
    "AttentionParams", "DTransformerConfig", "DTransformerParams", "EDDecoderLayerParams", "EDTransformerConfig",
    "EDTransformerParams", "ETransformerConfig", "ETransformerParams", "LayerNormParams", "MHAttentionParams",
    "MLPParams", "TransformerLayerParams", "Variant", "banded", "bos_token", "count_params", "documents", "eos_token",
    "for_platform", "gelu", "gelu_tanh", "init_d_transformer", "init_e_transformer", "init_ed_transformer",
    "mask_token", "mesh_axes", "padding", "relu", "sinusoidal_positional_embedding",
]
# fmt: on
