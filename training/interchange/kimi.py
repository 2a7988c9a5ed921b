"""Kimi Linear, by changed lines: DeepSeek's with gated delta rules in most layers, and no positions."""

from collections.abc import Sequence
from typing import Any

from algorithms.lines import KimiDelta, Latent, RMSNorm
from training.interchange.decoders import SILU, VARIANT, WITHOUT_MLP, First, Mixed, of_lines
from training.interchange.deepseek import ALL_ALIKE, MLP_NAMES, NO_BIASES, check_heads, latent_rows, latent_sizes
from training.interchange.description import Fields, Layers, Model, Need
from training.interchange.experts import MIXTURES, OURS, mixture_table
from training.interchange.hybrids import LINEAR
from training.interchange.rotary import FULL

KIND = "kimi_linear"
OF_DELTA = "num_heads head_dim short_conv_kernel_size", "linear_num_heads linear_head_dim linear_conv_kernel_dim"
"""The numbers of a delta rule: in the object of published files, and in those of transformers."""
DEFAULTS = 32, 128, 4
_NORM = RMSNorm(epsilon=1e-5)


def _read(fields: Fields, found: dict[str, Any], names: Sequence[Any], kind: str) -> None:
    published = fields.inner(fields.table("linear_attn_config"))
    n, d, width = (
        published.integer(name, fields.integer(theirs, default))
        for name, theirs, default in zip(*map(str.split, OF_DELTA), DEFAULTS, strict=True)
    )
    delta = {"n": n, "n_keys": n, "d_key": d, "d_value": d, "rank": d, "width": width}
    found |= {f"{LINEAR}.{name}": value for name, value in delta.items()}
    check_heads(fields, found)


def _layer_types(fields: Fields, L: int) -> Any:
    """Return the kind of each layer; published files count from 1."""
    full = fields.inner(fields.table("linear_attn_config")).get("full_attn_layers")
    if isinstance(full, list):
        return [FULL if l + 1 in full else LINEAR for l in range(L)]
    return [FULL if l and l % 4 == 0 else LINEAR for l in range(L)] if full is None else full


def _write(model: Model, state: dict[str, Any], kind: str) -> list[str]:
    delta = next(line for line in model.config.variant.attentions if isinstance(line, KimiDelta))
    state |= dict(zip(OF_DELTA[1].split(), (delta.n, delta.d_key, delta.width), strict=True))
    return []


def _tensors(model: Model, state: dict[str, Any], kind: str) -> dict[str, str]:
    layer, ours = "model.layers.#", "layers.attention"
    attention, q = f"{layer}.self_attn", "q_proj" if state.get("q_lora_rank") is None else "q_b_proj"
    return {
        **latent_rows(attention, q),
        **{f"{attention}.{a}_proj.weight": f"{ours}.W_{a}:C_{a}" for a in "qkv"},
        **{f"{attention}.{a}_conv1d.weight": f"<{ours}.C_{a}>" for a in "qkv"},
        **{f"{attention}.f_{a}_proj.weight": f"{ours}.W_a{i}" for i, a in ((1, "a"), (2, "b"))},
        **{f"{attention}.g_{a}_proj.weight": f"{ours}.W_z{i}" for i, a in ((1, "a"), (2, "b"))},
        f"{attention}.b_proj.weight": f"{ours}.W_b",
        f"{attention}.dt_bias": f"{ours}.b_a",
        f"{attention}.A_log": f"{{{ours}.a}}",
        f"{attention}.o_norm.weight": f"{ours}.gamma",
        f"{attention}.o_proj.weight": f"{ours}.W_out",
        **{
            "|".join(f"{layer}.{module}.{name}.*" for module in ("mlp", "block_sparse_moe")): f"layers.mlp.{leaf}"
            for name, leaf in zip(MLP_NAMES.split(), OURS.split(), strict=True)
        },
        **mixture_table(MIXTURES[kind]),
    }


KINDS = {
    KIND: of_lines(
        KIND,
        "KimiLinear",
        _tensors,
        fields=[
            *(*latent_sizes(None), *NO_BIASES, ALL_ALIKE, Mixed(KIND), First(1, 9216)),
            Need("moe_router_activation_func", "sigmoid", "other scores of experts"),
            Need("mla_use_nope", True, "rotary positions"),
            *SILU,
        ],
        variant=VARIANT.but(norm=_NORM),
        sizes=[field._replace(names=field.names.replace("max_", "model_max_length|max_")) for field in WITHOUT_MLP],
        heads=[],
        epsilon=1e-5,
        norms=f"{LINEAR}.norm",
        read=_read,
        write=_write,
        lines={
            LINEAR: KimiDelta(n=32, n_keys=32, d_key=128, d_value=128, rank=128, norm=_NORM),
            FULL: Latent(positions=None, d_c=512, d_r=64),
        },
        layers=Layers(_layer_types),
    )
}
"""By model_type."""
