"""Phuong and Hutter's "Formal Algorithms for Transformers" (2022), executable: the table of contents.

Each of the paper's fifteen numbered algorithms is one pure, compiled JAX function over pytrees of parameters, in the
paper's notation: tokens are columns, and weights are ``[d_out, d_in]``. The legend is in ``algorithms.notation``.
"""

# ruff: noqa: I001 - in the paper's order
# fmt: off
from algorithms.alg01_embedding import token_embedding as token_embedding                         # Algorithm 1
from algorithms.alg01_embedding import positional_embedding as positional_embedding               # Algorithm 2
from algorithms.alg03_attention import single_query_attention as single_query_attention           # Algorithm 3
from algorithms.alg03_attention import attention as attention                                     # Algorithm 4
from algorithms.alg03_attention import mh_attention as mh_attention                               # Algorithm 5
from algorithms.alg06_layer_norm import layer_norm as layer_norm                                  # Algorithm 6
from algorithms.alg01_embedding import unembedding as unembedding                                 # Algorithm 7
from algorithms.alg08_ed_transformer import ed_transformer as ed_transformer                      # Algorithm 8
from algorithms.alg09_e_transformer import e_transformer as e_transformer                         # Algorithm 9
from algorithms.alg10_d_transformer import d_transformer as d_transformer                         # Algorithm 10
from algorithms.alg11_training import ed_training as ed_training                                  # Algorithm 11
from algorithms.alg11_training import e_training as e_training                                    # Algorithm 12
from algorithms.alg11_training import d_training as d_training                                    # Algorithm 13
from algorithms.alg14_inference import d_inference as d_inference                                 # Algorithm 14
from algorithms.alg14_inference import ed_inference as ed_inference                               # Algorithm 15

# Building blocks and intermediate results
from algorithms.alg01_embedding import sinusoidal_positional_embedding as sinusoidal_positional_embedding
from algorithms.alg03_attention import scaled_dot_product_attention as scaled_dot_product_attention
from algorithms.alg06_layer_norm import rms_norm as rms_norm
from algorithms.alg08_ed_transformer import ed_encoding as ed_encoding, ed_decoding as ed_decoding, ed_hidden_state as ed_hidden_state
from algorithms.alg08_ed_transformer import ed_logits as ed_logits
from algorithms.alg09_e_transformer import e_encoding as e_encoding, e_hidden_state as e_hidden_state, e_logits as e_logits
from algorithms.alg10_d_transformer import d_hidden_state as d_hidden_state, d_logits as d_logits
from algorithms.alg14_inference import e_inference as e_inference
from algorithms.cache import context_cache as context_cache, empty_cache as empty_cache, read_tokens as read_tokens
from algorithms.losses import d_token_losses as d_token_losses, e_token_losses as e_token_losses, ed_token_losses as ed_token_losses
from algorithms.losses import mtp_token_losses as mtp_token_losses
from algorithms.mtp import mtp_hidden_state as mtp_hidden_state
from algorithms.ops.activation import gelu as gelu, gelu_tanh as gelu_tanh, relu as relu
from algorithms.ops.log_loss import log_loss as log_loss, token_losses as token_losses

# Masks and the legend
from algorithms.masks import BIDIRECTIONAL as BIDIRECTIONAL, UNIDIRECTIONAL as UNIDIRECTIONAL
from algorithms.masks import banded as banded, blocks as blocks, documents as documents, near as near
from algorithms.masks import padding as padding, prefix as prefix
from algorithms.notation import IMPLEMENTATIONS as IMPLEMENTATIONS
from algorithms.notation import bos_token as bos_token, eos_token as eos_token, mask_token as mask_token

# Parameters and their initial values
from algorithms.model.initialization import count_params as count_params
from algorithms.model.initialization import grow_vocabulary as grow_vocabulary
from algorithms.model.initialization import init_d_transformer as init_d_transformer
from algorithms.model.initialization import init_e_transformer as init_e_transformer
from algorithms.model.initialization import init_ed_transformer as init_ed_transformer
from algorithms.model.sizes import DTransformerConfig as DTransformerConfig, ETransformerConfig as ETransformerConfig
from algorithms.model.sizes import EDTransformerConfig as EDTransformerConfig
from algorithms.model.theta import DTransformerParams as DTransformerParams, ETransformerParams as ETransformerParams
from algorithms.model.theta import EDTransformerParams as EDTransformerParams
from algorithms.parameters import AttentionParams as AttentionParams, MHAttentionParams as MHAttentionParams
from algorithms.parameters import EDDecoderLayerParams as EDDecoderLayerParams, LayerNormParams as LayerNormParams
from algorithms.parameters import ExpertsParams as ExpertsParams, MTPParams as MTPParams
from algorithms.parameters import MLPParams as MLPParams, TransformerLayerParams as TransformerLayerParams

# Published models
from algorithms import lines as lines
from algorithms.model.variant import VARIANTS as VARIANTS, Variant as Variant
from algorithms.model.variants import ALBERT as ALBERT, BART as BART, BERT as BERT, BLOOM as BLOOM
from algorithms.model.variants import COHERE2 as COHERE2, GRANITE as GRANITE, GRANITE_HYBRID as GRANITE_HYBRID
from algorithms.model.variants import DEEPSEEK_V32 as DEEPSEEK_V32, GLM5 as GLM5
from algorithms.model.variants import DEEPSEEK as DEEPSEEK, GLM4 as GLM4, MINIMAX_M2 as MINIMAX_M2, OLMO3 as OLMO3
from algorithms.model.variants import GEMMA as GEMMA, GEMMA2 as GEMMA2, GEMMA3 as GEMMA3, GOPHER as GOPHER
from algorithms.model.variants import GEMMA4 as GEMMA4, GEMMA4_E as GEMMA4_E, GEMMA4_MOE as GEMMA4_MOE
from algorithms.model.variants import GPT2 as GPT2, GPT3 as GPT3, GPT_NEO as GPT_NEO, LLAMA as LLAMA, MARIAN as MARIAN
from algorithms.model.variants import GPT_OSS as GPT_OSS, MIXTRAL as MIXTRAL, OLMOE as OLMOE, QWEN3_MOE as QWEN3_MOE
from algorithms.model.variants import MISTRAL as MISTRAL, NANOCHAT as NANOCHAT, NEOX as NEOX, OLMO2 as OLMO2, OPT as OPT, PAPER as PAPER
from algorithms.model.variants import QWEN2 as QWEN2, QWEN3 as QWEN3, ROBERTA as ROBERTA, T5 as T5, VASWANI as VASWANI
from algorithms.model.variants import LLADA as LLADA, LLAMA4 as LLAMA4, MODERNBERT as MODERNBERT, OLMO_HYBRID as OLMO_HYBRID
from algorithms.model.variants import QWEN3_5 as QWEN3_5, QWEN3_5_MOE as QWEN3_5_MOE, QWEN3_NEXT as QWEN3_NEXT
from algorithms.model.variants import APERTUS as APERTUS, ARCEE as ARCEE, ERNIE4_5 as ERNIE4_5, GLM4_MOE as GLM4_MOE
from algorithms.model.variants import GLM4_MOE_LITE as GLM4_MOE_LITE, QWEN2_MOE as QWEN2_MOE, SEED_OSS as SEED_OSS
from algorithms.model.variants import ERNIE4_5_MOE as ERNIE4_5_MOE, EXAONE4 as EXAONE4, HUNYUAN as HUNYUAN
from algorithms.model.variants import ETTIN as ETTIN, MINISTRAL3 as MINISTRAL3, OLMO as OLMO, STARCODER2 as STARCODER2
from algorithms.model.variants import FALCON_H1 as FALCON_H1
from algorithms.model.variants import LFM2 as LFM2, LFM2_MOE as LFM2_MOE
from algorithms.model.variants import NEMOTRON3 as NEMOTRON3, NEMOTRON_H as NEMOTRON_H
from algorithms.model.variants import KIMI_LINEAR as KIMI_LINEAR, RECURRENT_GEMMA as RECURRENT_GEMMA

# For programs around them
from algorithms.machinery.contract import REGISTRY as REGISTRY
from algorithms.machinery.devices import for_platform as for_platform
from algorithms.machinery.devices import mesh_axes as mesh_axes
from algorithms.roles import muon_dimensions as muon_dimensions, partition_specs as partition_specs
from algorithms.roles import roles_of as roles_of, weight_decay_mask as weight_decay_mask
from algorithms import relations as relations
