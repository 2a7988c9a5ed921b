"""The platforms' own kernels: the Pallas kernel's values in interpret mode, what is refused, and lowering from here."""

import functools
import types

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.sharding import AbstractDevice, AbstractMesh, AxisType

import algorithms as alg
from algorithms.machinery.options import using
from algorithms.masks import StructuralMask
from algorithms.ops.attention import dispatch, vendor
from algorithms.ops.attention.dispatch import automatic
from algorithms.ops.attention.tiles import Scores, dense_attention
from algorithms.ops.attention.vendor import (
    cudnn_attention,
    cudnn_refuses,
    library_attention,
    pallas_attention,
    pallas_refuses,
)
from tests import cases
from tests.cases import common_factor

pytestmark = pytest.mark.sampled(2, tests=6)

TPU = AbstractDevice(device_kind="TPU v5 lite", num_cores=1, platform="tpu")
GPU = AbstractDevice(device_kind="NVIDIA H100 80GB HBM3", num_cores=1, platform="gpu")


def tiles(l_z=128, l_x=128, d=64, dtype=jnp.float32, d_mid=None, H=2, H_kv=None):
    H_kv = H_kv or H
    shapes = ((H, d, 2, l_x), (H_kv, d, 2, l_z), (H_kv, d_mid or d, 2, l_z))
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.normal(size=s), dtype) for s in shapes]


NUMBERS = np.repeat(np.arange(4, dtype=np.int32), 32)
LATER = StructuralMask(unidirectional=True, first=cases.array(3))
NOTHING_AND_77 = alg.padding(cases.array([0, 77], jnp.int32))
PADDED = alg.UNIDIRECTIONAL & NOTHING_AND_77
OF_EACH = alg.padding(jax.device_put(np.arange(4, dtype=jnp.int32)))
OF_BOTH = np.stack([NUMBERS, NUMBERS // 3 - 7])  # the documents of two sequences
OTHERS = StructuralMask(documents_z=cases.array(OF_BOTH), documents_x=cases.array(OF_BOTH[:, ::-1] + 1))
AS_ARRAYS = {
    "documents": alg.UNIDIRECTIONAL & cases.documents(OF_BOTH),
    "documents of a whole batch": cases.documents(NUMBERS),
    "documents in a band, and padding": cases.documents(OF_BOTH) & alg.banded(40) & PADDED,
    "documents that the context does not have": OTHERS,
    "a prefix": alg.prefix(cases.array([9, 100], jnp.int32)),
    "blocks": alg.blocks(cases.array(NUMBERS)),
    "a window to both sides": alg.near(9) & NOTHING_AND_77,
}
OF_CUDNN = {
    "nothing": alg.BIDIRECTIONAL,
    "the future": alg.UNIDIRECTIONAL,
    "the future and padding": PADDED,
    "a window": alg.banded(40),
    "a window and padding": alg.banded(40) & NOTHING_AND_77,
}
MODEL = alg.DTransformerConfig(N_V=97, l_max=128, L=2, H=2, d_e=16, d_mlp=32, variant=alg.GPT2)
HALF = {"dtype": jnp.bfloat16}
slow = pytest.mark.slow


@pytest.fixture
def interpreted(monkeypatch):
    """The TPU's kernel, in interpret mode and small blocks."""
    monkeypatch.setattr(splash, "make_splash_mha", functools.partial(splash.make_splash_mha, interpret=True))
    monkeypatch.setattr(vendor, "PALLAS_BLOCKS", (128,))


@pytest.fixture
def cudnn(monkeypatch):
    """It need not be installed."""
    monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda: 91000)


def by_both(kernel, mask, cap=None):
    """A library's kernel and the rule that it must agree with, as functions of tiles."""
    scores = Scores(mask, cap=cap)
    return (lambda *tiles: library_attention(kernel, *tiles, mask, cap)), lambda *tiles: dense_attention(*tiles, scores)


def assert_kernel_agrees(kernel, mask, matrices, cap=None):
    """Values and gradients in float32."""
    with jax.enable_x64(False):
        found, expected = (jax.jit(functools.partial(cases.pulled, f))(*matrices) for f in by_both(kernel, mask, cap))
    for name, a, b in zip(("Ṽ", *"QKV"), found, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5 if name == "Ṽ" else 1e-4, err_msg=name)


@pytest.mark.sampled(1, tests=6)
@pytest.mark.parametrize(
    ("mask", "sizes", "cap"),
    [
        pytest.param(PADDED, {}, None, id="nothing, and half"),
        pytest.param(cases.documents(NUMBERS) & alg.banded(40), {"d_mid": 24}, None, id="documents in a band"),
        pytest.param(cases.documents(OF_BOTH - 1) & PADDED, {}, None, id="documents and padding"),
        pytest.param(OTHERS, {}, None, id="documents that the context does not have"),
        pytest.param(alg.UNIDIRECTIONAL, {"H": 4, "H_kv": 2}, 0.5, id="shared keys, capped scores"),
        pytest.param(alg.UNIDIRECTIONAL, {"l_x": 256, "l_z": 384}, None, id="unidirectional", marks=slow),
        pytest.param(alg.UNIDIRECTIONAL, {"l_x": 256}, None, id="less context", marks=slow),
        pytest.param(alg.UNIDIRECTIONAL, {"l_x": 512, "l_z": 512}, None, id="pairs of blocks"),
        pytest.param(alg.banded(40), {"l_x": 512}, None, id="tokens beyond the band", marks=slow),
        pytest.param(alg.near(40), {"l_x": 512, "l_z": 256}, None, id="tokens beyond a window to both sides"),
        pytest.param(alg.near(40) & NOTHING_AND_77, {}, None, id="a padded window to both sides"),
        pytest.param(alg.BIDIRECTIONAL, {"l_z": 512}, None, id="bidirectional", marks=slow),
    ],
)
def test_the_tpu_kernel_agrees(mask, sizes, cap, interpreted):
    assert_kernel_agrees(pallas_attention, mask, tiles(d=16, **sizes), cap)


@pytest.mark.thorough
@pytest.mark.parametrize("mask", [alg.UNIDIRECTIONAL & alg.padding(1500), alg.banded(4100)], ids=["causal", "window"])
def test_the_tpu_kernel_agrees_in_its_largest_blocks(mask, monkeypatch):
    """Each of several blocks' scores are computed in parts."""
    monkeypatch.setattr(splash, "make_splash_mha", functools.partial(splash.make_splash_mha, interpret=True))
    assert_kernel_agrees(pallas_attention, mask, [m[:, :, :1] for m in tiles(2048, 2048, d=8, H=1)])


@pytest.mark.parametrize(
    ("sizes", "mask", "expected"),
    [
        ({"l_x": 1024, "l_z": 1024}, alg.UNIDIRECTIONAL, (512, 512, 512, 512, 1024, 512)),
        ({"l_x": 4096, "l_z": 4096}, alg.UNIDIRECTIONAL, (1024, 1024, 512, 1024, 1024, 512)),
        ({"l_x": 4096, "l_z": 4096, "d": 256}, alg.BIDIRECTIONAL, (1024, 1024, 512, 1024, 1024, 512)),
        ({"l_x": 2048, "l_z": 768}, alg.BIDIRECTIONAL, (1024, 384, 384, 1024, 768, 384)),
        ({"l_x": 4096, "l_z": 4096}, alg.banded(4096), (1024, 1024, 512, 1024, 1024, 512)),
        ({"l_x": 4096, "l_z": 4096}, alg.banded(1024), (512, 512, 512, 512, 1024, 512)),
        ({"l_x": 4096, "l_z": 4096, "dtype": jnp.float32, "d": 192}, alg.UNIDIRECTIONAL, (512,) * 4 + (1024, 512)),
        ({"l_x": 2560, "l_z": 128}, alg.BIDIRECTIONAL, (512, 128, 128, 512, 128, 128)),
    ],
)
def test_blocks_of_the_tpu_kernel(sizes, mask, expected, monkeypatch):
    found, of_sizes = {}, splash.BlockSizes
    monkeypatch.setattr(splash, "BlockSizes", lambda **blocks: found.update(blocks) or of_sizes(**blocks))
    matrices = tiles(**{"dtype": jnp.bfloat16, "H": 1} | sizes)
    with jax.enable_x64(False):
        jax.eval_shape(lambda *m: pallas_attention(*m, mask, None), *matrices)
    assert tuple(n for name, n in found.items() if name.startswith("block_")) == expected


@pytest.mark.end_to_end
def test_the_tpu_kernels_factor_of_queries_is_not_rounded(interpreted):
    """1/√192 in bfloat16 is 1.0013 times as much."""
    kernel, dense = by_both(pallas_attention, alg.BIDIRECTIONAL)
    with jax.enable_x64(False):
        matrices = tiles(d=192, dtype=jnp.bfloat16)
        actual = cases.pulled(kernel, *matrices)
        expected = cases.pulled(dense, *(m.astype(jnp.float32) for m in matrices))
    for name, a, b in zip(("Ṽ", *"QKV"), actual, expected, strict=True):
        assert abs(common_factor(a, b) - 1) < 4e-4, name


HESSIAN_PRODUCTS = {
    "reverse over reverse": lambda F, at, v: jax.grad(lambda a: cases.dot(jax.grad(F)(a), v))(at),
    "forward over reverse": lambda F, at, v: jax.jvp(jax.grad(F), (at,), (v,))[1],
}


@pytest.mark.sampled(1, tests=6)
@pytest.mark.parametrize("way", HESSIAN_PRODUCTS)
@pytest.mark.parametrize(
    ("mask", "sizes", "cap"),
    [(PADDED, {}, None), (alg.banded(40), {"H": 4, "H_kv": 2}, 0.5)],
    ids=["nothing, and half", "shared keys, capped scores"],
)
def test_second_derivatives_of_the_tpu_kernel(mask, sizes, cap, way, interpreted):
    matrices = tuple(tiles(d=16, **sizes))
    v = tuple(jnp.asarray(np.random.default_rng(3).normal(size=m.shape), m.dtype) for m in matrices)

    def product(attention):
        def F(matrices):  # as in a scan over layers, where JAX forgets a jax.custom_jvp
            def layer(total, scale):
                return total + jnp.sin(attention(*(scale * m for m in matrices))).sum(), None

            return jax.lax.scan(layer, jnp.zeros((), jnp.float32), jnp.ones(2, jnp.float32))[0]

        return jax.jit(lambda a, v: HESSIAN_PRODUCTS[way](F, a, v))(matrices, v)

    with jax.enable_x64(False):
        actual, expected = map(product, by_both(pallas_attention, mask, cap))
    for name, a, b in zip("QKV", actual, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5 * np.abs(b).max(), err_msg=name)


@jax.numpy_rank_promotion("allow")
def attention_by_offsets(q, k, v, *, scale, mask_type, qkv_layout, q_seqlen, kv_seqlen, q_offsets, kv_offsets):
    """What cuDNN computes, by JAX's own test of it: documents begin at offsets and have lengths, or are −1."""
    assert (mask_type, qkv_layout) == (fused_attention_stablehlo.MaskType.PADDING_CAUSAL, "BTNH")
    t, first = jnp.arange(q.shape[1]), q_offsets[:, :-1, None]
    inside = (first >= 0) & (t >= first) & (t < first + q_seqlen[..., None])
    permitted = (inside[:, :, :, None] & inside[:, :, None]).any(axis=1) & (t[:, None] >= t)
    S = jnp.where(permitted[:, None], jnp.einsum("bxhd,bzhd->bhxz", q, k) * scale, -jnp.inf)
    return jnp.einsum("bhxz,bzhd->bxhd", jax.nn.softmax(S), v)


@pytest.mark.end_to_end
@pytest.mark.parametrize(("most", "of_x", "by_array"), [(64, 0, False), (3, 0, False), (2, 0, True), (64, 1, True)])
def test_documents_by_their_first_tokens_and_lengths(most, of_x, by_array, monkeypatch):
    """Otherwise as an array: if there are too many, or the context has others."""
    monkeypatch.setattr(fused_attention_stablehlo, "dot_product_attention", attention_by_offsets)
    by_none = lambda q, *_, **__: jnp.full_like(q, jnp.nan)  # noqa: E731
    monkeypatch.setattr(jax.nn, "dot_product_attention", by_none)
    monkeypatch.setattr(vendor, "_compute_capability", lambda: (9, 0))
    monkeypatch.setattr(vendor, "CUDNN_DOCUMENTS", most)
    matrices = tiles(d=12, d_mid=8)
    rows = jnp.asarray([np.repeat([0, 3, 4], [5, 100, 23]), np.repeat([7, 9], [1, 127])], jnp.int32)
    mask = StructuralMask(unidirectional=True, documents_z=rows, documents_x=rows + of_x)
    found = cudnn_attention(*matrices, mask, None)
    if by_array:
        assert np.isnan(found).all()
    else:
        np.testing.assert_allclose(found, dense_attention(*matrices, Scores(mask)), atol=1e-5)


AS_OFFSETS = {"change": {}, "l_x": 128, "capability": (9, 0)}


@pytest.mark.parametrize(
    "other",
    [
        {"change": {"width": 40}},
        {"change": {"length": 77}},
        {"change": {"unidirectional": False}},
        {"l_x": 256},
        {"capability": (8, 9)},
        {"capability": ()},
    ],
    ids=["a window", "padding", "the future", "other queries", "an older GPU", "no GPU here"],
)
def test_documents_that_cudnn_gets_as_an_array(other, monkeypatch):
    rows = np.zeros((2, 128), np.int32)

    def by_offsets(change, l_x, capability):
        monkeypatch.setattr(vendor, "_compute_capability", lambda: capability)
        mask = StructuralMask(**{"unidirectional": True, "documents_z": rows, "documents_x": rows} | change)
        Q, K, _ = tiles(d=8, l_x=l_x)
        return vendor._by_offsets(mask, Q, K)

    assert by_offsets(**AS_OFFSETS)
    assert not by_offsets(**AS_OFFSETS | other)


@pytest.mark.parametrize("mask", [alg.UNIDIRECTIONAL, OF_EACH], ids=["of one", "of each"])
@pytest.mark.parametrize(
    ("sizes", "local"),
    [((4, 2), (1, 1)), ((2, 4), (2, 2)), ((8, 1), (2, 4))],
    ids=["heads and sequences", "heads stay together", "nothing is divided"],
)
def test_on_several_devices_each_computes_its_heads_and_sequences(mask, sizes, local, monkeypatch):
    """The rule sees the tiles of one device; values, gradients and what is dropped are those of one device."""
    matrices = [jnp.asarray(np.random.default_rng(2).normal(size=(2, 3, 4, 8))) for _ in range(3)]
    keys, seen = jax.random.split(jax.random.key(0), 4), []

    def rule(*arguments):
        seen.append(arguments[0].shape[::2])
        return dense_attention(*arguments)

    def value_and_gradients(*matrices):
        def loss(*matrices):
            with using(implementation="dense", dropout=0.3, key=keys):
                V_tilde = cases.attended(*matrices, mask)
            return (V_tilde**3).sum(), V_tilde

        return jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(*matrices)

    expected = jax.jit(value_and_gradients)(*matrices)
    monkeypatch.setitem(dispatch.RULES, "dense", rule)
    mesh = jax.make_mesh(sizes, ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    with jax.set_mesh(mesh):
        actual = jax.jit(value_and_gradients)(*matrices)
    chex.assert_trees_all_close(actual, expected, rtol=1e-12, atol=1e-13)
    assert set(seen) == {local}


def test_on_several_tpus_the_kernel_is_in_the_program():
    devices = AbstractMesh((4, 2), ("data", "model"), (AxisType.Auto,) * 2, abstract_device=TPU)
    matrices = [jax.ShapeDtypeStruct((2, 64, 4, 256), jnp.bfloat16)] * 3

    def loss(*matrices):
        return cases.attended(*matrices, alg.UNIDIRECTIONAL).sum()

    with jax.enable_x64(False), jax.sharding.use_abstract_mesh(devices):
        text = jax.jit(jax.grad(loss)).trace(*matrices).lower(lowering_platforms=("tpu",)).as_text()
    assert text.count("tpu_custom_call") == 2  # forward, and one kernel for all gradients
    assert "tensor<1x1x256x64xbf16>" in text  # one head of one sequence


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize("rows", [(16, 16), (12, 9), (8, 16)], ids=str)
@pytest.mark.parametrize("mask", (AS_ARRAYS | OF_CUDNN).values(), ids=AS_ARRAYS | OF_CUDNN)
def test_what_cudnn_is_asked_for(mask, rows, monkeypatch):
    """By what JAX computes for the same call without cuDNN, which needs a GPU, with what was seen on one: a window is
    the past's bound alone.
    """
    by_xla = jax.nn.dot_product_attention

    def dot_product_attention(*matrices, implementation, **options):
        as_array = any(mask is other for other in AS_ARRAYS.values())
        assert (implementation, "mask" in options) == ("cudnn", as_array)
        assert {a.shape[-1] for a in matrices} == {16}
        if "local_window_size" in options:
            options["local_window_size"] = (options["local_window_size"][0], 128)
        return by_xla(*matrices, implementation="xla", **options)

    monkeypatch.setattr(jax.nn, "dot_product_attention", dot_product_attention)
    assert_kernel_agrees(cudnn_attention, mask, tiles(d=rows[0], d_mid=rows[1], H=4, H_kv=2))


@pytest.mark.parametrize(
    ("refuses", "platform", "change", "reason"),
    [
        (cudnn_refuses, "cpu", {}, "runs on an NVIDIA GPU, and the platform is cpu"),
        (cudnn_refuses, "gpu", {}, "bfloat16 or float16 throughout, got float32"),
        (cudnn_refuses, "gpu", {**HALF, "d": 136}, "at most 128 rows, got d_attn = 136"),
        (cudnn_refuses, "gpu", {**HALF, "d_mid": 129}, "got d_attn = 64 and d_mid = 129"),
        (cudnn_refuses, "gpu", {**HALF, "dropout": 0.1}, "dropout is not drawn from the key"),
        (cudnn_refuses, "gpu", {**HALF, "l_x": 127, "mask": alg.prefix(9)}, "even lengths for such"),
        (cudnn_refuses, "gpu", {**HALF, "l_x": 127, "mask": cases.array(np.ones((128, 127), bool))}, "even lengths"),
        (cudnn_refuses, "gpu", {**HALF, "l_z": 8194, "mask": alg.near(9)}, "too large for more than 81"),
        (cudnn_refuses, "gpu", {**HALF, "mask": LATER}, "its first query is token 0"),
        (pallas_refuses, "tpu", {"mask": LATER}, "its first query is token 0"),
        (pallas_refuses, "tpu", {"mask": alg.prefix(9)}, "does not mask by a prefix"),
        (pallas_refuses, "tpu", {"mask": AS_ARRAYS["blocks"] & alg.near(9)}, "does not mask by a prefix or by blocks"),
        (pallas_refuses, "cpu", {}, "runs on a TPU, and the platform is cpu"),
        (pallas_refuses, "tpu", {"dtype": jnp.float16}, "bfloat16 or float32 throughout, got float16"),
        (pallas_refuses, "tpu", {"l_x": 130}, "multiples of 128 tokens, got l_x = 130"),
        (pallas_refuses, "tpu", {"dropout": 0.1}, "no dropout"),
        (
            pallas_refuses,
            "tpu",
            {"mask": cases.array(np.ones((128, 128), bool))},
            "accepts structural masks, not arrays",
        ),
    ],
)
def test_what_is_not_exact_is_refused(refuses, platform, change, reason):
    dropout, mask = change.pop("dropout", 0.0), change.pop("mask", alg.BIDIRECTIONAL)
    assert reason in refuses(*tiles(**change), Scores(mask, dropout=dropout), platform)


@pytest.mark.parametrize(
    ("capability", "cudnn", "sizes", "reason"),
    [
        ("9.0", 91200, (256, 256), None),
        ("9.0", 91200, (192, 128), None),
        ("9.0", 91200, (257, 128), "at most 256 rows, got d_attn = 257 and d_mid = 128, compute capability 9.0"),
        ("9.0", 91200, (128, 124), None),
        ("9.0", None, (256, 256), None),
        ("8.9", 91200, (128, 64), None),
        ("8.9", 91200, (256, 256), "at most 128 rows, got d_attn = 256"),
        ("7.5", 91200, (64, 64), "does not run on a GPU of compute capability 7.5"),
        ("10.3", 91001, (64, 64), "does not run on a GPU of compute capability 10.3"),
        ("10.3", 91100, (64, 64), None),
        ("gfx942", None, (64, 64), "this one is of another maker"),
    ],
)
def test_the_gpu_and_cudnn_decide_the_heads_that_cudnn_takes(capability, cudnn, sizes, reason, monkeypatch):
    def version():
        if cudnn is None:
            raise RuntimeError("cuDNN is not detected.")
        return cudnn

    device = types.SimpleNamespace(platform="gpu", compute_capability=capability)
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", version)
    matrices = tiles(d=sizes[0], d_mid=sizes[1], dtype=jnp.bfloat16)
    found = cudnn_refuses(*matrices, Scores(alg.UNIDIRECTIONAL), "gpu")
    assert found is None if reason is None else reason in found


def test_what_is_exact_is_not_refused():
    half = tiles(dtype=jnp.bfloat16)
    assert cudnn_refuses(*half, Scores(alg.banded(3) & alg.padding(5)), "gpu") is None
    assert cudnn_refuses(*half, Scores(alg.UNIDIRECTIONAL & alg.near(3)), "gpu") is None
    assert cudnn_refuses(*tiles(127, dtype=jnp.bfloat16), Scores(alg.banded(3)), "gpu") is None
    assert all(cudnn_refuses(*half, Scores(mask), "gpu") is None for mask in AS_ARRAYS.values())
    assert pallas_refuses(*tiles(), Scores(alg.UNIDIRECTIONAL & cases.documents(NUMBERS)), "tpu") is None
    assert pallas_refuses(*tiles(), Scores(alg.near(3) & alg.padding(5)), "tpu") is None
    assert automatic(*half, Scores(alg.UNIDIRECTIONAL), "gpu") == "cudnn"
    assert automatic(*tiles(), Scores(alg.UNIDIRECTIONAL), "tpu") == "pallas"
    assert automatic(*tiles(), Scores(alg.UNIDIRECTIONAL), "gpu") == "dense"
    assert automatic(*tiles(1024, 1024), Scores(alg.UNIDIRECTIONAL), "cpu") == "strips"
    assert automatic(*tiles(1024, 1024), Scores(alg.padding(1000)), "cpu") == "blockwise"
    assert automatic(*tiles(4096, 4096), Scores(alg.UNIDIRECTIONAL), "cpu") == "blockwise"
    assert automatic(*tiles(128, 128), Scores(alg.UNIDIRECTIONAL), "cpu") == "dense"


def program(f, device, platform, x64):
    """Of a function of a model's parameters and tokens, for a device."""
    with jax.enable_x64(x64), jax.sharding.use_abstract_mesh(AbstractMesh((), (), (), abstract_device=device)):
        theta = jax.eval_shape(lambda key: alg.init_d_transformer(key, MODEL), jax.random.key(0))
        traced = jax.jit(f).trace(theta, jax.ShapeDtypeStruct((2, 128), jnp.int32))
        return traced.lower(lowering_platforms=(platform,)).as_text()


for_each_accelerator = pytest.mark.parametrize(
    ("device", "platform", "kernel"), [(TPU, "tpu", "tpu_custom_call"), (GPU, "cuda", "__cudnn$")]
)


@for_each_accelerator
@pytest.mark.parametrize(
    ("remat", "kernels"), [(False, 2), ("all but products", 2), ("all but attention", 2), (True, 3)]
)
def test_what_is_computed_again_runs_the_kernel_again_or_not(remat, kernels, device, platform, kernel, cudnn):

    def loss(theta, x):
        theta = jax.tree.map(lambda a: a.astype(jnp.bfloat16), theta)
        return alg.d_hidden_state(x, theta, remat=remat).sum()

    assert program(jax.grad(loss), device, platform, x64=False).count(kernel) == kernels


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("remat", [False, True])
@pytest.mark.parametrize("way", HESSIAN_PRODUCTS)
@for_each_accelerator
def test_products_with_a_models_hessian_lower_for_every_platform(device, platform, kernel, way, remat, x64, cudnn):
    """In the layers' loop, and with the kernel in the first derivative."""

    def product(theta, x):
        def loss(theta):
            theta = jax.tree.map(lambda a: a.astype(jnp.bfloat16), theta)
            return alg.d_hidden_state(x, theta, remat=remat).astype(jnp.float32).sum()

        return HESSIAN_PRODUCTS[way](loss, theta, theta)

    assert kernel in program(product, device, platform, x64)


OF_INT64 = cases.array(NUMBERS, "int64")
WIDE = [alg.padding(cases.array([3, 77], "int64")), StructuralMask(documents_z=OF_INT64, documents_x=OF_INT64)]


@pytest.mark.parametrize("mask", WIDE, ids=["padding", "documents"])
def test_the_tpu_kernel_lowers_in_x64_mode(mask):
    """Without a warning, too, about the 64-bit integers of a mask."""

    def loss(matrices, mask):
        return library_attention(pallas_attention, *matrices, mask).sum()

    lowered = jax.jit(jax.grad(loss)).trace(tiles(), mask).lower(lowering_platforms=("tpu",))
    assert lowered.as_text().count("tpu_custom_call") == 2
