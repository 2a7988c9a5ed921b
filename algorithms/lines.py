"""The lines of Algorithms 8 to 10 that published models change: the parts of a `Variant`."""

# fmt: off
# ruff: noqa: I001, PLC0414
from algorithms.machinery.contract import array as array
from algorithms.model.attention import At as At, Attention as Attention, QKV as QKV
from algorithms.model.delta import GatedDelta as GatedDelta, KimiDelta as KimiDelta
from algorithms.model.distances import ALiBi as ALiBi, Distances as Distances, TransformerXL as TransformerXL
from algorithms.model.embedding import Embedding as Embedding
from algorithms.model.experts import Experts as Experts
from algorithms.model.indexer import Indexer as Indexer
from algorithms.model.latent import Latent as Latent
from algorithms.model.layer_end import LayerEnd as LayerEnd
from algorithms.model.line import Line as Line
from algorithms.model.mamba import Mamba2 as Mamba2
from algorithms.model.mixer import MixerMetadata as MixerMetadata, Mixer as Mixer
from algorithms.model.mlp import MLP as MLP, XIELU as XIELU
from algorithms.model.norm import LayerNorm as LayerNorm, RMSNorm as RMSNorm
from algorithms.model.parallel import Parallel as Parallel
from algorithms.model.positions import Linear as Linear, Llama3 as Llama3, Positions as Positions
from algorithms.model.positions import Rotary as Rotary, Temperature as Temperature, Yarn as Yarn
from algorithms.model.rg_lru import RGLRU as RGLRU
from algorithms.model.short_convolution import ShortConvolution as ShortConvolution
from algorithms.model.embedding import Unembedding as Unembedding
from algorithms.model.variant import MTP as MTP
