"""Which kernel of attention each named variant runs in training, by tracing, as kernels.md says.

python -m tests.algorithms.test_kernels    prints the table, with the rows of a head that it has: 64 in a new one
"""

import functools
import re
import sys
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp
import pytest

import algorithms as alg
from algorithms.model.variants import VARIANTS
from algorithms.ops.attention import dispatch, vendor
from tests import cases

pytestmark = pytest.mark.sampled(3)

TABLE = Path(__file__).with_name("kernels.md")
# platform, compute capability and cuDNN
MACHINES = {
    "H100": ("gpu", (9, 0), (9, 10)),
    "A100": ("gpu", (8, 0), (9, 10)),
    "TPU": ("tpu", (), ()),
    "CPU": ("cpu", (), ()),
}
KERNELS = {"gpu": "cudnn", "tpu": "pallas"}
ENCODERS = ("BERT", "ROBERTA", "ALBERT", "MODERNBERT", "LLADA")
TRANSLATORS = ("VASWANI", "BART", "T5", "MARIAN", "FSMT")
B, l = 2, 1024


@functools.cache
def table():
    return TABLE.read_text("utf-8")


@functools.cache
def heads():
    """The published rows of a head; of values, where queries have more."""
    return {name: int(rows) for name, rows in re.findall(r"^\| `(\w+)` \| (?:\d+/)?(\d+)", table(), re.M)}


def loss_of(name):
    """The variant's loss of (θ, x, lengths), on the rows that `train.py` makes of documents, or with padding."""
    if name in TRANSLATORS:
        return lambda theta, x, n: alg.ed_token_losses(x, x, theta, z_length=n, length=n)
    if name in ENCODERS:
        return lambda theta, x, n: alg.e_token_losses(x, theta, x_tilde=x, length=n)
    return lambda theta, x, n: alg.d_token_losses(x, theta, segments=x)


def config_of(name):
    variant, d = VARIANTS[name], heads().get(name, 64)
    sizes = {"N_V": 97, "l_max": l, "d_e": 128, "d_attn": d, "d_mid": d, "d_mlp": 128, "variant": variant}
    sizes["H"] = 4 if name == "GEMMA4" else 2
    L = variant.shared_layers * (len(variant.attention) if isinstance(variant.attention, tuple) else 1)
    if name in TRANSLATORS:
        return alg.EDTransformerConfig(**sizes, L_enc=L, L_dec=L)
    return alg.ETransformerConfig(**sizes, L=L, d_f=128) if name in ENCODERS else alg.DTransformerConfig(**sizes, L=L)


def traced(name):
    config = config_of(name)
    theta = jax.eval_shape(lambda key: cases.initializer(config)(key, config), jax.random.key(0))
    theta = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, jnp.bfloat16), theta)
    x, lengths = jax.ShapeDtypeStruct((B, l), jnp.int32), jax.ShapeDtypeStruct((B,), jnp.int32)
    jax.eval_shape(loss_of(name), theta, x, lengths)


def row(name):
    """The row of the table: heads, the kernel of each machine, and why it is not the platform's own."""
    found, reasons, rows = {machine: {} for machine in MACHINES}, {}, {}
    automatic = dispatch.automatic

    def chosen(Q, K, V, scores, _):
        rows[f"{Q.shape[1]}" if Q.shape[1] == V.shape[1] else f"{Q.shape[1]}/{V.shape[1]}"] = None
        for machine, (platform, gpu, cudnn) in MACHINES.items():
            limits = {"_compute_capability": lambda gpu=gpu: gpu, "_cudnn_version": lambda cudnn=cudnn: cudnn}
            with mock.patch.multiple(vendor, **limits):
                kernel = automatic(Q, K, V, scores, platform)
                if kernel != KERNELS.get(platform, kernel):
                    reason = dispatch._kernel_refuses(KERNELS[platform], Q, K, V, scores, platform)
                    reasons[reason.partition(", got")[0]] = None
            found[machine][kernel] = None
        return "dense"

    with mock.patch.object(dispatch, "automatic", chosen), cases.traced_anew():
        traced(name)
    cells = [f"`{name}`", *map(", ".join, (rows, *found.values(), reasons))]
    return "| " + " | ".join(cells).rstrip() + " |"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", VARIANTS)
def test_the_table_of_kernels_is_what_tracing_finds(name):
    assert row(name) in table().splitlines()


def main() -> None:
    """Print the table."""
    columns = ["variant", "rows of a head", *MACHINES, "why not the platform's own"]
    sys.stdout.write(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|\n")
    for name in VARIANTS:
        sys.stdout.write(row(name) + "\n")


if __name__ == "__main__":
    main()
