"""Published models, as the lines of the pseudocode that they change."""

import dataclasses
import functools

from algorithms.model.attention import Attention
from algorithms.model.delta import GatedDelta, KimiDelta
from algorithms.model.distances import ALiBi, Distances, TransformerXL
from algorithms.model.embedding import Embedding, Unembedding
from algorithms.model.experts import Experts
from algorithms.model.indexer import Indexer
from algorithms.model.latent import Latent
from algorithms.model.layer_end import LayerEnd
from algorithms.model.mamba import Mamba2
from algorithms.model.mlp import MLP, XIELU
from algorithms.model.norm import LayerNorm, RMSNorm
from algorithms.model.parallel import Parallel
from algorithms.model.positions import Llama3, Rotary, Temperature, Yarn
from algorithms.model.rg_lru import RGLRU
from algorithms.model.short_convolution import ShortConvolution
from algorithms.model.variant import VARIANTS, Variant

PAPER = Variant()
"""Phuong and Hutter 2022: the pseudocode and nothing else."""

VASWANI = PAPER.but(
    embedding=Embedding(positions="sinusoidal", scaled=True),
    norm=LayerNorm(epsilon=1e-6),
    mlp=MLP(activation="relu"),
    unembedding=Unembedding(tied=True),
)
"""Vaswani et al. 2017: sinusoidal positions, embeddings scaled by √d_e, tied unembedding (ε is that of their code)."""

BERT = PAPER.but(
    embedding=Embedding(normalized=True),
    norm=LayerNorm(epsilon=1e-12),
    mlp=MLP(activation="gelu"),
    unembedding=Unembedding(tied=True, bias=True),
)
"""Devlin et al. 2018: Algorithm 9 with normalized embeddings and an output bias; `N_types` adds token types."""

ALBERT = BERT.but(
    embedding=Embedding(normalized=True, factored=True), mlp=MLP(activation="gelu_tanh"), shared_layers=12
)
"""Lan et al. 2020: BERT whose 12 layers (24 in "large") share their parameters, and whose embeddings have d_in rows."""

GPT2 = PAPER.but(norm=LayerNorm(epsilon=1e-5), mlp=MLP(activation="gelu_tanh"), unembedding=Unembedding(tied=True))
"""Radford et al. 2019: Algorithm 10 with the tanh approximation of GELU and tied unembedding."""

GPT3 = GPT2.but(attention=(Attention(), Attention(window=256)))
"""Brown et al. 2020: GPT2 whose layers alternate between full and windowed attention (of an unpublished width)."""

GOPHER = GPT2.but(
    embedding=Embedding(positions=None), norm=RMSNorm(epsilon=1e-5), attention=Attention(positions=TransformerXL())
)
"""Rae et al. 2021: GPT2 with RMSnorm and the relative positions of Transformer-XL."""

BLOOM = GPT2.but(embedding=Embedding(positions=None, normalized=True), attention=Attention(positions=ALiBi()))
"""BigScience 2022: GPT2 with normalized embeddings and scores that decrease with the distance."""

LLAMA = PAPER.but(
    embedding=Embedding(positions=None),
    norm=RMSNorm(epsilon=1e-5),
    attention=Attention(positions=Rotary(base=10_000.0), biases=False),
    mlp=MLP(activation="silu", gated=True, biases=False),
)
"""Touvron et al. 2023: RMSnorm, rotary positions, a gated MLP, no biases."""

MISTRAL = LLAMA.but(attention=Attention(positions=Rotary(base=10_000.0), biases=False, window=4096))
"""Jiang et al. 2023: LLAMA with windowed attention."""

MINISTRAL3 = LLAMA.but(
    attention=Attention(
        positions=Rotary(
            base=1_000_000.0,
            scaling=Yarn(factor=16.0, l_original=16_384, attention_factor=1.0),
            temperature=Temperature(c=0.1, n=16_384, first=0),
        ),
        biases=False,
    )
)
"""Mistral AI 2025 (Ministral 3): LLAMA with YaRN, and queries that grow with their position."""

QWEN2 = LLAMA.but(norm=RMSNorm(epsilon=1e-6), attention=Attention(positions=Rotary(base=1_000_000.0), biases="qkv"))
"""Yang et al. 2024: LLAMA with biases for queries, keys and values."""

SEED_OSS = QWEN2.but(attention=Attention(positions=Rotary(base=10_000_000.0), biases="qkv"))
"""ByteDance Seed 2025 (Seed-OSS): QWEN2 with another rotary base."""

ARCEE = LLAMA.but(mlp=MLP(activation="relu_squared", biases=False))
"""Arcee AI 2025 (AFM-4.5B): LLAMA with ReLU² and no gate."""

APERTUS = LLAMA.but(
    attention=Attention(
        positions=Rotary(base=12_000_000.0, scaling=Llama3(factor=8.0)),
        biases=False,
        normalize_heads=RMSNorm(epsilon=1e-5),
    ),
    mlp=XIELU(biases=False),
)
"""Swiss AI 2025 (Apertus): LLAMA with normalized queries and keys, and xIELU without a gate."""

ERNIE4_5 = LLAMA.but(
    attention=Attention(positions=Rotary(base=500_000.0, pairs="neighbors"), biases=False),
    unembedding=Unembedding(tied=True),
)
"""Baidu 2025 (Ernie 4.5 without experts): LLAMA with rotations by pairs of neighbors, tied."""

STARCODER2 = GPT2.but(
    embedding=Embedding(positions=None), attention=Attention(positions=Rotary(base=100_000.0), window=4096)
)
"""Lozhkov et al. 2024 (15B): GPT2 with rotary positions and a window."""

QWEN3 = LLAMA.but(
    norm=RMSNorm(epsilon=1e-6),
    attention=Attention(positions=Rotary(base=1_000_000.0), biases=False, normalize_heads=RMSNorm(epsilon=1e-6)),
)
"""Yang et al. 2025: LLAMA with normalized queries and keys."""

HUNYUAN = LLAMA.but(
    attention=Attention(
        positions=Rotary(base=10_000.0), biases=False, normalize_heads=RMSNorm(epsilon=1e-5), positions_first=True
    )
)
"""Tencent 2025 (HunYuan dense): LLAMA with queries and keys that are normalized after their positions."""

OLMO = LLAMA.but(norm=LayerNorm(epsilon=1e-5, gamma=False, beta=False))
"""Groeneveld et al. 2024: LLAMA with layer norms without γ and β."""

_OLMO2_NORM = RMSNorm(epsilon=1e-6)

_OLMO2_ATTENTION = Attention(
    positions=Rotary(base=500_000.0),
    biases=False,
    normalize_heads=_OLMO2_NORM,
    heads_together=True,
    normalize_output=_OLMO2_NORM,
)

OLMO2 = LLAMA.but(
    norm=_OLMO2_NORM,
    attention=_OLMO2_ATTENTION,
    mlp=MLP(activation="silu", gated=True, biases=False, normalize_output=_OLMO2_NORM),
    order="no_norm",
)
"""OLMo Team 2024: LLAMA that normalizes sublayers' outputs instead of inputs, and queries and keys across heads."""

OLMO3 = OLMO2.but(
    attention=(
        *[_OLMO2_ATTENTION.but(window=4096)] * 3,
        _OLMO2_ATTENTION.but(positions=Rotary(base=500_000.0, scaling=Yarn(factor=8.0, l_original=8192))),
    )
)
"""OLMo Team 2025: OLMO2 in which three of four layers have windows, and the fourth scaled frequencies."""

_OLMO_HYBRID_DELTA = GatedDelta(n=30, n_keys=30, d_key=96, d_value=192, norm=RMSNorm(epsilon=1e-5), beta_factor=2.0)

OLMO_HYBRID = OLMO2.but(
    attention=(*[_OLMO_HYBRID_DELTA] * 3, _OLMO2_ATTENTION.but(positions=None)),
    mlp=(*LLAMA.mlps * 3, *OLMO2.mlps),
    order=("norm_first", "norm_first", "norm_first", "no_norm"),
)
"""OLMo Team 2026 (7B): OLMO2 without positions in one of four layers, and gated delta rules, norms first, in three."""

GRANITE = LLAMA.but(
    embedding=Embedding(positions=None, factor=12.0),
    attention=Attention(positions=Rotary(base=10_000.0), biases=False, scale=0.0078125),
    residual_factor=0.22,
    unembedding=Unembedding(tied=True, factor=1 / 16),
)
"""IBM 2024 (Granite 3.0, 8B): LLAMA with factors of embeddings, scores, what attentions and MLPs add, and logits."""

_GRANITE_MAMBA = Mamba2(n=64, n_keys=1, d_key=128, d_value=64, norm=RMSNorm(epsilon=1e-5))

GRANITE_HYBRID = GRANITE.but(
    attention=(*[_GRANITE_MAMBA] * 5, Attention(biases=False, scale=0.015625), *[_GRANITE_MAMBA] * 4),
    unembedding=Unembedding(tied=True, factor=1 / 8),
)
"""IBM 2025 (Granite 4.0 H Micro): GRANITE with Mamba-2 in nine of ten layers, and no positions in the tenth."""

FALCON_H1 = LLAMA.but(
    embedding=Embedding(positions=None, factor=5.656854249492381),
    attention=Parallel(
        attention=Attention(positions=Rotary(base=100_000_000_000.0), biases=False, scale=0.39062499999999994 / 8),
        recurrence=Mamba2(
            n=24,
            n_keys=1,
            d_key=128,
            d_value=64,
            norm=None,
            factors=(0.625, 0.4419417382415922, 0.3125, 0.4419417382415922, 0.4419417382415922),
        ),
        factors=(0.9375, 0.23570226039551587),
    ),
    mlp=MLP(activation="silu", gated=True, biases=False, factors=(0.8838834764831844, 0.5859375)),
    unembedding=Unembedding(factor=0.0390625),
)
"""TII 2025 (Falcon-H1 0.5B): LLAMA with attention and Mamba-2 side by side, and factors of products."""

_NEMOTRON_MAMBA = Mamba2(n=128, n_keys=8, d_key=128, d_value=64, delta_min=0.001, norm=RMSNorm(epsilon=1e-5))
_NEMOTRON_MLP = MLP(activation="relu_squared", biases=False)

NEMOTRON_H = LLAMA.but(
    attention=(*[_NEMOTRON_MAMBA] * 5, Attention(biases=False)), mlp=(*[_NEMOTRON_MLP] * 4, None, _NEMOTRON_MLP)
)
"""NVIDIA 2025 (Nemotron-H 8B): ARCEE without positions; Mamba-2 in five of six layers, the last without an MLP.

The published model numbers attentions, recurrences and MLPs as layers of their own, and begins with a shorter cycle.
"""

_NEMOTRON_EXPERTS = Experts(
    n=128, k=6, activation="relu_squared", biases=False, scores="sigmoid", factor=2.5, choice_bias=True, shared=2
)

NEMOTRON3 = NEMOTRON_H.but(
    attention=(*[dataclasses.replace(_NEMOTRON_MAMBA, n=64)] * 3, Attention(biases=False)),
    mlp=(_NEMOTRON_EXPERTS, _NEMOTRON_EXPERTS, None, _NEMOTRON_EXPERTS),
)
"""NVIDIA 2025 (Nemotron 3 Nano 30B-A3B): NEMOTRON_H with 6 of 128 MLPs by sigmoids, and shorter cycles."""

_GEMMA_NORM = RMSNorm(epsilon=1e-6, offset=1.0)

GEMMA = LLAMA.but(
    embedding=Embedding(positions=None, scaled=True),
    norm=_GEMMA_NORM,
    mlp=MLP(activation="gelu_tanh", gated=True, biases=False),
    unembedding=Unembedding(tied=True),
)
"""Gemma Team 2024: LLAMA with scaled, tied embeddings, γ stored as γ − 1, and GELU."""

_GEMMA2_ATTENTION = Attention(
    positions=Rotary(base=10_000.0), biases=False, scale=256**-0.5, cap=50.0, normalize_output=_GEMMA_NORM
)

GEMMA2 = GEMMA.but(
    attention=(_GEMMA2_ATTENTION.but(window=4096), _GEMMA2_ATTENTION),
    mlp=MLP(activation="gelu_tanh", gated=True, biases=False, normalize_output=_GEMMA_NORM),
    unembedding=Unembedding(tied=True, cap=30.0),
)
"""Gemma Team 2024: GEMMA with windows in alternate layers, capped scores and logits, and normalized outputs."""

_GEMMA3_ATTENTION = Attention(
    positions=Rotary(base=1_000_000.0),
    biases=False,
    scale=256**-0.5,
    normalize_heads=_GEMMA_NORM,
    normalize_output=_GEMMA_NORM,
)
_GEMMA3_WINDOW = _GEMMA3_ATTENTION.but(positions=Rotary(base=10_000.0), window=1024)

GEMMA3 = GEMMA2.but(attention=(*[_GEMMA3_WINDOW] * 5, _GEMMA3_ATTENTION), unembedding=Unembedding(tied=True))
"""Gemma Team 2025: GEMMA2 without caps, with normalized heads; five of six layers have windows, and another base."""

_GEMMA4_NORM = RMSNorm(epsilon=1e-6)
_GEMMA4_GLOBAL = Attention(
    positions=Rotary(base=1_000_000.0, share=0.25, of_all=True),
    biases=False,
    scale=1.0,
    normalize_heads=_GEMMA4_NORM,
    normalize_values=_GEMMA4_NORM.but(gamma=False),
    normalize_output=_GEMMA4_NORM,
    d_head=512,
)
_GEMMA4_WINDOW = _GEMMA4_GLOBAL.but(positions=Rotary(base=10_000.0), window=1024, d_head=None)
_GEMMA4_MLP = MLP(activation="gelu_tanh", gated=True, biases=False, normalize_output=_GEMMA4_NORM)

GEMMA4 = GEMMA.but(
    norm=_GEMMA4_NORM,
    attention=(*[_GEMMA4_WINDOW] * 5, _GEMMA4_GLOBAL.but(keys_are_values=True, n_keys=4)),
    mlp=_GEMMA4_MLP,
    unembedding=Unembedding(tied=True, cap=30.0),
    layer_end=LayerEnd(),
)
"""Gemma Team 2026 (31B): GEMMA3 with normalized values, a scalar a layer, and wide global heads of keys as values."""

_GEMMA4_FIRST = (*[_GEMMA4_WINDOW.but(window=512)] * 4, _GEMMA4_GLOBAL)

GEMMA4_E = GEMMA4.but(
    attention=(*_GEMMA4_FIRST * 3, *(*[_GEMMA4_FIRST[0].but(keys_of=13)] * 4, _GEMMA4_GLOBAL.but(keys_of=14)) * 4),
    mlp=(*[_GEMMA4_MLP] * 15, *[_GEMMA4_MLP.but(d_mlp=12_288)] * 20),
    layer_end=LayerEnd(d=256),
)
"""Gemma Team 2026 (Gemma 4, E2B): GEMMA4 with embeddings of every layer; the last 20 of 35 layers read the keys and
values of two earlier ones, and have wider MLPs."""

GEMMA4_MOE = GEMMA4.but(
    attention=(*[_GEMMA4_WINDOW] * 5, _GEMMA4_GLOBAL.but(keys_are_values=True, n_keys=2)),
    mlp=Experts(**vars(_GEMMA4_MLP), n=128, k=8, shared=3, own_norms=True),
)
"""Gemma Team 2026 (26B-A4B): GEMMA4 with 8 of 128 MLPs beside the MLP, each side with norms of its own."""

_RG_LRU = RGLRU(n=10, d=256)

RECURRENT_GEMMA = GEMMA.but(
    embedding=Embedding(positions=None, scaled="bfloat16"),
    attention=(_RG_LRU, _RG_LRU, Attention(positions=Rotary(base=10_000.0, share=0.5), biases="out", window=2048)),
    mlp=MLP(activation="gelu_tanh", gated=True),
    unembedding=Unembedding(tied=True, cap=30.0),
)
"""Botev et al. 2024: GEMMA with RG-LRUs in two of three layers, a window in the third, biases, and capped logits."""

_LFM2_ATTENTION = Attention(positions=Rotary(base=1_000_000.0), biases=False, normalize_heads=RMSNorm(epsilon=1e-5))

LFM2 = LLAMA.but(attention=(*[ShortConvolution(d=2048)] * 2, _LFM2_ATTENTION), unembedding=Unembedding(tied=True))
"""Liquid AI 2025 (LFM2-1.2B): QWEN3 with short convolutions in two of three layers, tied; the published ends faster."""

GLM4 = LLAMA.but(
    attention=Attention(
        positions=Rotary(base=10_000.0, share=0.5, pairs="neighbors"), biases="qkv", normalize_output=LLAMA.norm
    ),
    mlp=MLP(activation="silu", gated=True, biases=False, normalize_output=LLAMA.norm),
)
"""GLM Team 2025 (GLM-4-0414): LLAMA with normalized outputs too, half of the rows rotated, and biases of q, k and v."""

NANOCHAT = LLAMA.but(
    embedding=Embedding(positions=None, normalized=True),
    norm=RMSNorm(epsilon=1e-6, gamma=False),
    attention=Attention(
        positions=Rotary(base=10_000.0, pairs="halves_swapped"),
        biases=False,
        normalize_heads=RMSNorm(epsilon=1e-6, gamma=False),
    ),
    mlp=MLP(activation="relu_squared", biases=False),
    unembedding=Unembedding(cap=15.0),
)
"""Karpathy 2025: LLAMA with ReLU², norms without γ, also of embeddings, queries and keys, and capped logits."""

_COHERE2_ATTENTION = Attention(biases=False)

COHERE2 = LLAMA.but(
    norm=LayerNorm(epsilon=1e-5, beta=False),
    attention=(
        *[_COHERE2_ATTENTION.but(positions=Rotary(base=50_000.0, pairs="neighbors"), window=4096)] * 3,
        _COHERE2_ATTENTION,
    ),
    order="one_norm",
    unembedding=Unembedding(tied=True, factor=0.25),
)
"""Cohere 2024 (Command R7B): attention and MLP side by side with one layer norm; no positions in every fourth layer."""

_EXAONE4_NORM = RMSNorm(epsilon=1e-5)
_EXAONE4_ATTENTION = Attention(biases=False, normalize_heads=_EXAONE4_NORM, normalize_output=_EXAONE4_NORM)

EXAONE4 = OLMO2.but(
    norm=LLAMA.norm,
    attention=(*[_EXAONE4_ATTENTION.but(positions=Rotary(base=1_000_000.0), window=4096)] * 3, _EXAONE4_ATTENTION),
    mlp=MLP(activation="silu", gated=True, biases=False, normalize_output=LLAMA.norm),
)
"""LG AI Research 2025 (EXAONE 4.0, 32B): OLMO2 with norms of each head, and windows and positions in three of four."""

NEOX = PAPER.but(
    embedding=Embedding(positions=None),
    norm=LayerNorm(epsilon=1e-5),
    attention=Attention(positions=Rotary(base=10_000.0, share=0.25)),
    order="side_by_side",
)
"""Black et al. 2022, and Pythia: attention and MLP in parallel, rotary positions for a quarter of the rows."""

GPT_NEO = GPT2.but(attention=(Attention(scale=1.0, biases="out"), Attention(scale=1.0, biases="out", window=256)))
"""Black et al. 2021: GPT3 with unscaled scores and without biases for queries, keys and values."""

OPT = GPT2.but(embedding=Embedding(first_position=2), mlp=MLP(activation="relu"))
"""Zhang et al. 2022: GPT2 with ReLU and positions that start at 2."""

ROBERTA = BERT.but(embedding=Embedding(normalized=True, first_position=2), norm=LayerNorm(epsilon=1e-5))
"""Liu et al. 2019: BERT with positions that start at 2."""

_MODERNBERT_ATTENTION = Attention(positions=Rotary(base=10_000.0), biases=False, window=65)

MODERNBERT = BERT.but(
    embedding=Embedding(positions=None, normalized=True),
    norm=LayerNorm(epsilon=1e-5, beta=False),
    attention=(Attention(positions=Rotary(base=160_000.0), biases=False), *[_MODERNBERT_ATTENTION] * 2),
    mlp=MLP(activation="gelu", gated=True, biases=False),
    order="norm_first",
    first_norm=False,
    final_norm=True,
)
"""Warner et al. 2024: BERT with norms first, rotary positions, a gated MLP and windows in two of three layers."""

ETTIN = MODERNBERT.but(
    attention=(MODERNBERT.attentions[0], *[_MODERNBERT_ATTENTION.but(window=64)] * 2),
    unembedding=Unembedding(tied=True, bias=True, projected=True),
)
"""Weller et al. 2025 (Ettin's decoders): MODERNBERT as Algorithm 10, with lines 10 and 11 of Algorithm 9."""

LLADA = LLAMA.but(
    attention=Attention(positions=Rotary(base=500_000.0), biases=False),
    order="norm_first",
    final_norm=True,
    head="unembedding",
)
"""Nie et al. 2025 (LLaDA): LLAMA's lines in Algorithm 9, whose tokens attend both ways, without its lines 10 and 11."""

BART = PAPER.but(
    embedding=Embedding(normalized=True, first_position=2, context_positions=True),
    norm=LayerNorm(epsilon=1e-5),
    mlp=MLP(activation="gelu"),
    unembedding=Unembedding(tied=True, bias=True),
)
"""Lewis et al. 2019: separate positions for encoder and decoder, from 2 on; normalized embeddings; an output bias."""

T5 = PAPER.but(
    embedding=Embedding(positions=None),
    norm=RMSNorm(epsilon=1e-6),
    attention=Attention(positions=Distances(), scale=1.0, biases=False),
    mlp=MLP(activation="relu", biases=False),
    order="norm_first",
    final_norm=True,
    unembedding=Unembedding(tied=True, scaled=True),
)
"""Raffel et al. 2020: RMSnorm first, unscaled scores with a learned number for each distance, no biases."""

MARIAN = PAPER.but(
    embedding=Embedding(positions="sinusoidal_halves", scaled=True),
    norm=LayerNorm(epsilon=1e-5),
    mlp=MLP(activation="silu"),
    unembedding=Unembedding(tied=True, bias=True),
)
"""Junczys-Dowmunt et al. 2018: sinusoidal positions, sines before cosines; SiLU; an output bias."""

_experts = functools.partial(Experts, activation="silu", gated=True, biases=False)

MIXTRAL = LLAMA.but(
    attention=Attention(positions=Rotary(base=1_000_000.0), biases=False), mlp=_experts(n=8, k=2, balance=0.02)
)
"""Jiang et al. 2024: LLAMA in which each token takes two of eight gated MLPs."""

QWEN2_MOE = QWEN2.but(mlp=_experts(n=60, k=4, renormalized=False, shared=4, shared_gate=True, balance=0.001))
"""Qwen Team 2024 (Qwen1.5-MoE-A2.7B): QWEN2 with 4 of 60 MLPs by the whole softmax, and a gated shared one."""

QWEN3_MOE = QWEN3.but(mlp=_experts(n=128, k=8, balance=0.001))
"""Yang et al. 2025: QWEN3 in which each token takes 8 of 128 gated MLPs."""

_QWEN3_NEXT_ATTENTION = Attention(
    positions=Rotary(base=10_000_000.0, share=0.25), biases=False, normalize_heads=_GEMMA_NORM, gated=True
)

QWEN3_NEXT = LLAMA.but(
    norm=_GEMMA_NORM,
    attention=(*[GatedDelta(n=32, n_keys=16, d_key=128, d_value=128)] * 3, _QWEN3_NEXT_ATTENTION),
    mlp=_experts(n=512, k=10, shared=1, shared_gate=True, balance=0.001),
)
"""Qwen Team 2025: gated delta rules in three of four layers, gated attention, 10 of 512 MLPs and a gated shared one."""

QWEN3_5 = QWEN3_NEXT.but(mlp=LLAMA.mlp)
"""Qwen Team 2026 (Qwen 3.5, text): QWEN3_NEXT with one MLP."""

QWEN3_5_MOE = QWEN3_5.but(mlp=_experts(n=256, k=8, shared=1, shared_gate=True, balance=0.001))
"""Qwen Team 2026 (Qwen3.5-35B-A3B, text): QWEN3_5 with 8 of 256 MLPs and a gated shared one."""

OLMOE = LLAMA.but(
    attention=Attention(
        positions=Rotary(base=10_000.0), biases=False, normalize_heads=RMSNorm(epsilon=1e-5), heads_together=True
    ),
    mlp=_experts(n=64, k=8, renormalized=False, balance=0.01),
)
"""Muennighoff et al. 2024: LLAMA with norms of queries and keys across heads, and 8 of 64 MLPs by the whole softmax."""

MINIMAX_M2 = LLAMA.but(
    norm=RMSNorm(epsilon=1e-6),
    attention=Attention(
        positions=Rotary(base=5_000_000.0, share=0.5),
        biases=False,
        normalize_heads=RMSNorm(epsilon=1e-6),
        heads_together=True,
    ),
    mlp=_experts(n=256, k=8, scores="sigmoid", choice_bias=True),
)
"""MiniMax 2025: LLAMA with norms of queries and keys across heads, and 8 of 256 MLPs by sigmoids."""

_LLAMA4_CHUNKS = Attention(positions=Rotary(base=500_000.0, pairs="neighbors"), biases=False, window=8192, chunked=True)

LLAMA4 = LLAMA.but(
    attention=(*[_LLAMA4_CHUNKS] * 3, Attention(positions=Temperature(), biases=False)),
    mlp=(*LLAMA.mlps, _experts(n=128, k=1, scores="sigmoid", renormalized=False, weighted="inputs", shared=1)),
)
"""Meta 2025 (Llama 4 Maverick, text): LLAMA with chunks in three of four layers, and one of 128 MLPs in every second.

The fourth layers have no rotary positions, but a temperature. The MLPs of layers without experts are as wide as one
expert; the published model's are twice as wide, ``MLP(d_mlp=16384, …)``.
"""

_GPT_OSS_ATTENTION = Attention(
    positions=Rotary(base=150_000.0, scaling=Yarn(factor=32.0, l_original=4096, truncate=False)), sinks=True
)

GPT_OSS = LLAMA.but(
    attention=(_GPT_OSS_ATTENTION.but(window=128), _GPT_OSS_ATTENTION),
    mlp=Experts(n=32, k=4, activation="gelu_sigmoid", gated=True, clip=7.0, router_bias=True, balance=0.01),
)
"""Agarwal et al. 2025: LLAMA with biases, sinks, windows in alternate layers, and 4 of 32 MLPs with a clipped gate."""

_of_256 = functools.partial(_experts, n=256, k=8, scores="sigmoid", choice_bias=True, shared=1)

DEEPSEEK = LLAMA.but(
    norm=RMSNorm(epsilon=1e-6),
    attention=Latent(d_c=512, d_r=64, d_q=1536, positions=Rotary(base=10_000.0, pairs="neighbors")),
    mlp=_of_256(factor=2.5, groups=8, chosen_groups=4),
)
"""DeepSeek-AI 2024 (V3): LLAMA with latent attention, a shared MLP, and 8 of 256 MLPs by sigmoids.

All layers are alike; the published model adds ``first=(…,) * 3``, MLPs in the first layers.
"""

DEEPSEEK_V32 = DEEPSEEK.but(attention=dataclasses.replace(DEEPSEEK.attentions[0], indexer=Indexer(n=64, d=128, k=2048)))
"""DeepSeek-AI 2025 (V3.2): DEEPSEEK with an indexer, which chooses the 2,048 tokens that a token reads."""

ERNIE4_5_MOE = ERNIE4_5.but(mlp=_experts(n=64, k=6, choice_bias=True, shared=2, balance=0.0))
"""Baidu 2025 (Ernie 4.5 21B-A3B): ERNIE4_5 with 6 of 64 MLPs by the softmax; the published adds ``first=(…,)``."""

LFM2_MOE = LFM2.but(mlp=_experts(n=32, k=4, scores="sigmoid", choice_bias=True))
"""Liquid AI 2025 (LFM2-8B-A1B): LFM2 with 4 of 32 MLPs by sigmoids; the published model adds ``first=(…,) * 2``."""

GLM4_MOE = LLAMA.but(
    attention=Attention(positions=Rotary(base=1_000_000.0, share=0.5), biases="qkv"), mlp=_of_256(n=128)
)
"""GLM Team 2025 (GLM-4.5-Air): LLAMA with half of the rows rotated, biases of q, k, v, and 8 of 128 MLPs by sigmoids.

The published model adds ``first=(…,)``; GLM-4.5 has norms of queries and keys, too.
"""

GLM4_MOE_LITE = DEEPSEEK.but(
    norm=RMSNorm(epsilon=1e-5),
    attention=Latent(d_c=512, d_r=64, d_q=768, positions=Rotary(base=1_000_000.0, pairs="neighbors")),
    mlp=_of_256(n=64, k=4, factor=1.8),
)
"""Z.ai 2026 (GLM-4.7-Flash): DEEPSEEK with 4 of 64 MLPs and no groups; the published model adds ``first=(…,)``."""

GLM5 = DEEPSEEK_V32.but(
    norm=RMSNorm(epsilon=1e-5),
    attention=Latent(
        d_c=512,
        d_r=64,
        d_q=2048,
        positions=Rotary(base=1_000_000.0, pairs="neighbors"),
        indexer=Indexer(n=32, d=128, k=2048, pairs="neighbors"),
    ),
    mlp=_of_256(factor=2.5),
)
"""Z.ai 2026 (GLM-5): DEEPSEEK_V32 without groups of experts; the published model adds ``first=(…,) * 3``."""

KIMI_LINEAR = DEEPSEEK.but(
    norm=RMSNorm(epsilon=1e-5),
    attention=(
        *[KimiDelta(n=32, n_keys=32, d_key=128, d_value=128, rank=128, norm=RMSNorm(epsilon=1e-5))] * 3,
        Latent(d_c=512, d_r=64, positions=None),
    ),
    mlp=_of_256(factor=2.446),
)
"""Kimi Team 2025: DEEPSEEK with gated delta rules that decay row by row in three of four layers, and no positions.

All layers have experts; the published model adds ``first=(…,)``, and ends with latent attention.
"""

VARIANTS.update({name: line for name, line in globals().items() if isinstance(line, Variant)})


def name_of(variant: Variant) -> str | None:
    """The name of a variant, whatever its number of shared layers; None if it has no name."""
    lines = variant.but(shared_layers=1)
    return next((name for name, named in VARIANTS.items() if named.but(shared_layers=1) == lines), None)
