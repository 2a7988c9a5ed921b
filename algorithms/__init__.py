"""Phuong and Hutter's "Formal Algorithms for Transformers" (2022), executable: the table of contents.

Each of the paper's fifteen numbered algorithms is one pure, compiled JAX function over pytrees of parameters, in the
paper's notation: tokens are columns, and weights are ``[d_out, d_in]``. ``algorithms.notation`` has the legend.
"""

from algorithms import alg01_embedding as _embedding
from algorithms import alg03_attention as _attention
from algorithms import alg06_layer_norm as _layer_norm
from algorithms import alg07_unembedding as _unembedding
from algorithms import alg08_ed_transformer as _ed_transformer
from algorithms import alg09_e_transformer as _e_transformer
from algorithms import alg10_d_transformer as _d_transformer
from algorithms import alg11_training as _training
from algorithms import alg14_inference as _inference
from algorithms import lines
from algorithms.alg01_embedding import sinusoidal_positional_embedding
from algorithms.machinery.compiled import REGISTRY, algorithm, compiled
from algorithms.masks import BIDIRECTIONAL, UNIDIRECTIONAL, banded, documents, padding
from algorithms.model.initialization import (
    count_params,
    init_d_transformer,
    init_e_transformer,
    init_ed_transformer,
)
from algorithms.model.sizes import DTransformerConfig, EDTransformerConfig, ETransformerConfig
from algorithms.model.variant import Variant
from algorithms.model.variants import (
    BART,
    BERT,
    FSMT,
    GEMMA,
    GEMMA2,
    GEMMA3,
    GPT2,
    GPT3,
    GPT_NEO,
    LLAMA,
    MARIAN,
    MISTRAL,
    NEOX,
    OPT,
    PAPER,
    QWEN2,
    QWEN3,
    ROBERTA,
    VARIANTS,
    VASWANI,
)
from algorithms.notation import IMPLEMENTATIONS, bos_token, eos_token, mask_token
from algorithms.ops import log_loss as _log_loss
from algorithms.ops.activation import gelu, gelu_tanh, relu
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

# fmt: off
# The paper's fifteen                 number  name in the paper               function
token_embedding        = algorithm(   1, "Token embedding",              _embedding.token_embedding)
positional_embedding   = algorithm(   2, "Positional embedding",         _embedding.positional_embedding)
single_query_attention = algorithm(   3, "Basic single-query attention", _attention.single_query_attention)
attention              = algorithm(   4, "Attention",                    _attention.attention)
mh_attention           = algorithm(   5, "MHAttention",                  _attention.mh_attention)
layer_norm             = algorithm(   6, "layer_norm",                   _layer_norm.layer_norm)
unembedding            = algorithm(   7, "Unembedding",                  _unembedding.unembedding)
ed_transformer         = algorithm(   8, "EDTransformer",                _ed_transformer.ed_transformer)
e_transformer          = algorithm(   9, "ETransformer",                 _e_transformer.e_transformer)
d_transformer          = algorithm(  10, "DTransformer",                 _d_transformer.d_transformer)
ed_training            = algorithm(  11, "EDTraining",                   _training.ed_training)
e_training             = algorithm(  12, "ETraining",                    _training.e_training)
d_training             = algorithm(  13, "DTraining",                    _training.d_training)
d_inference            = algorithm(  14, "DInference",                   _inference.d_inference)
ed_inference           = algorithm(  15, "EDInference",                  _inference.ed_inference)

# What they are made of, and what training reads of them
scaled_dot_product_attention = compiled(_attention.scaled_dot_product_attention)  # Algorithm 4, from line 4 on
rms_norm                     = compiled(_layer_norm.rms_norm)                     # Algorithm 6 with m = β = 0
ed_hidden_state              = compiled(_ed_transformer.ed_hidden_state)          # Algorithm 8, lines 1-20
ed_encoding                  = compiled(_ed_transformer.ed_encoding)              # Algorithm 8, lines 1-9
ed_decoding                  = compiled(_ed_transformer.ed_decoding)              # Algorithm 8, lines 10-20
e_hidden_state               = compiled(_e_transformer.e_hidden_state)            # Algorithm 9, lines 1-11
e_encoding                   = compiled(_e_transformer.e_encoding)                # Algorithm 9, lines 1-9
d_hidden_state               = compiled(_d_transformer.d_hidden_state)            # Algorithm 10, lines 1-10
log_loss                     = compiled(_log_loss.log_loss)                       # Algorithms 11 and 13, line 5
token_losses                 = compiled(_log_loss.token_losses)                   # its terms, a loss for each token

__all__ = [
    "token_embedding", "positional_embedding", "single_query_attention", "attention", "mh_attention", "layer_norm",
    "unembedding", "ed_transformer", "e_transformer", "d_transformer", "ed_training", "e_training", "d_training",
    "d_inference", "ed_inference", "scaled_dot_product_attention", "rms_norm", "ed_hidden_state", "ed_encoding",
    "ed_decoding", "e_hidden_state", "e_encoding", "d_hidden_state", "log_loss",
    "token_losses",
    "BART", "BERT", "BIDIRECTIONAL", "FSMT", "GEMMA", "GEMMA2", "GEMMA3", "GPT2", "GPT3", "GPT_NEO", "IMPLEMENTATIONS",
    "LLAMA", "MARIAN", "MISTRAL", "NEOX", "OPT", "PAPER", "QWEN2", "QWEN3", "REGISTRY", "ROBERTA", "UNIDIRECTIONAL",
    "VARIANTS", "VASWANI", "lines",
    "AttentionParams", "DTransformerConfig", "DTransformerParams", "EDDecoderLayerParams", "EDTransformerConfig",
    "EDTransformerParams", "ETransformerConfig", "ETransformerParams", "LayerNormParams", "MHAttentionParams",
    "MLPParams", "TransformerLayerParams", "Variant", "banded", "bos_token", "count_params", "documents", "eos_token",
    "gelu", "gelu_tanh", "init_d_transformer", "init_e_transformer", "init_ed_transformer", "mask_token", "padding",
    "relu", "sinusoidal_positional_embedding",
]
# fmt: on
