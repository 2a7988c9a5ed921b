"""Phuong and Hutter's "Formal Algorithms for Transformers" (2022), executable.

Each of the paper's fifteen numbered algorithms is one pure, compiled JAX function over pytrees of parameters, in the
paper's notation: tokens are columns, weights are ``[d_out, d_in]``, one sequence at a time; ``jax.vmap`` adds a batch.
``algorithms.notation`` has the legend of all axes.
"""

from algorithms.activations import gelu, gelu_tanh, relu
from algorithms.attention import attention, mh_attention, scaled_dot_product_attention, single_query_attention
from algorithms.configs import DTransformerConfig, EDTransformerConfig, ETransformerConfig
from algorithms.d_transformer import d_hidden_state, d_transformer
from algorithms.e_transformer import e_encoding, e_hidden_state, e_transformer
from algorithms.ed_transformer import ed_decoding, ed_encoding, ed_hidden_state, ed_transformer
from algorithms.embedding import positional_embedding, sinusoidal_positional_embedding, token_embedding
from algorithms.inference import d_inference, ed_inference
from algorithms.initialization import (
    count_params,
    init_d_transformer,
    init_e_transformer,
    init_ed_transformer,
)
from algorithms.loss import log_loss
from algorithms.masks import BIDIRECTIONAL, UNIDIRECTIONAL, banded, documents, padding
from algorithms.normalization import layer_norm, rms_norm
from algorithms.notation import bos_token, eos_token, mask_token
from algorithms.parameters import (
    AttentionParams,
    DTransformerParams,
    EDDecoderLayerParams,
    EDTransformerParams,
    ETransformerParams,
    LayerNormParams,
    MHAttentionParams,
    MLPParams,
    TransformerLayerParams,
)
from algorithms.registry import REGISTRY
from algorithms.scores import IMPLEMENTATIONS
from algorithms.training import d_training, e_training, ed_training
from algorithms.unembedding import unembedding
from algorithms.variants import BERT, GPT2, PAPER, VASWANI, Variant

__all__ = [
    "BERT",
    "BIDIRECTIONAL",
    "GPT2",
    "IMPLEMENTATIONS",
    "PAPER",
    "REGISTRY",
    "UNIDIRECTIONAL",
    "VASWANI",
    "AttentionParams",
    "DTransformerConfig",
    "DTransformerParams",
    "EDDecoderLayerParams",
    "EDTransformerConfig",
    "EDTransformerParams",
    "ETransformerConfig",
    "ETransformerParams",
    "LayerNormParams",
    "MHAttentionParams",
    "MLPParams",
    "TransformerLayerParams",
    "Variant",
    "attention",
    "banded",
    "bos_token",
    "count_params",
    "d_hidden_state",
    "d_inference",
    "d_training",
    "d_transformer",
    "documents",
    "e_encoding",
    "e_hidden_state",
    "e_training",
    "e_transformer",
    "ed_decoding",
    "ed_encoding",
    "ed_hidden_state",
    "ed_inference",
    "ed_training",
    "ed_transformer",
    "eos_token",
    "gelu",
    "gelu_tanh",
    "init_d_transformer",
    "init_e_transformer",
    "init_ed_transformer",
    "layer_norm",
    "log_loss",
    "mask_token",
    "mh_attention",
    "padding",
    "positional_embedding",
    "relu",
    "rms_norm",
    "scaled_dot_product_attention",
    "single_query_attention",
    "sinusoidal_positional_embedding",
    "token_embedding",
    "unembedding",
]
