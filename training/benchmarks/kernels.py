"""Every kernel of a platform against the oracle: values and gradients, in each type that the kernel takes.

The inputs are exact in bfloat16, so that one answer of the oracle, in float64, is right for every type.
"""

import functools
import math
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from algorithms import UNIDIRECTIONAL, banded, documents, log_loss, near, padding, prefix
from algorithms.lines import Attention
from algorithms.machinery.options import using
from algorithms.masks import Mask, StructuralMask
from algorithms.ops.attention.dispatch import RULES, Weights, scores
from algorithms.ops.grouped import Blocks, collect, grouped_product, spread
from training.benchmarks.timing import table
from training.oracle import lines, softmax

Arrays = dict[str, np.ndarray]

LIBRARIES = {"gpu": ("cudnn",), "tpu": ("pallas",)}
"""Platform → its library's kernels for attention."""
DTYPES = {"cpu": ("float32", "bfloat16"), "gpu": ("float32", "bfloat16", "float16"), "tpu": ("float32", "bfloat16")}
LIMITS = {"float32": 1e-4, "float16": 0.0125, "bfloat16": 0.1}
"""The largest error of a token, divided by its norm or, if that is more, the root mean square of all tokens' norms."""
OPTIONS = {"gpu": {"xla_gpu_graph_min_graph_size": 2**30}}
"""Options of a platform's compiler: no CUDA graphs, since threads that compile interrupt the recording of others'."""
PRODUCTS = {"gpu": LIMITS["float16"], "tpu": LIMITS["bfloat16"]}
"""The limits of float32 where products round their factors to as many bits: TF32 on GPUs, bfloat16 on TPUs."""


class Case(NamedTuple):
    """Attention of B sequences."""

    name: str
    mask: Mask
    B: int = 2
    H: int = 2
    H_kv: int = 1
    l_x: int = 128
    l_z: int = 128
    d_attn: int = 64
    d_mid: int = 64
    cap: float | None = None
    sinks: bool = False


class Check(NamedTuple):
    """A function, its inputs and weights E of its outputs, and what the oracle says: the outputs and the gradients of
    their sum, weighted by E, with tokens on the last axis of each.
    """

    name: str
    kernels: tuple[str, ...]
    function: Callable[..., jax.Array]  # (kernel, inputs) → outputs
    inputs: Arrays
    E: np.ndarray
    expected: Callable[[], Arrays]


class Found(NamedTuple):
    """The result of checking one kernel in one type."""

    kernel: str
    name: str
    dtype: str
    limit: float
    errors: dict[str, float]  # of the outputs, "", and of each input's gradient
    refused: str = ""  # why the kernel does not take it
    failed: str = ""  # what it raised

    @property
    def wrong(self) -> str:
        """The error as a sentence, or "" if there is none."""
        what = f"{self.kernel} in {self.dtype}, {self.name}"
        if self.failed:
            return f"{what}: expected the oracle's values, but it raised {self.failed}"
        worst = [f"{_of(name)} by {error:.2g}" for name, error in self.errors.items() if not error <= self.limit]
        return f"{what}: expected at most {self.limit:g} of error, got {', '.join(worst)}" if worst else ""


def cases(platform: str) -> list[Case]:
    """Return the cases of attention; on a CPU, few that have everything."""
    rng = np.random.default_rng(0)
    numbers = jnp.asarray(np.sort(rng.integers(5, size=(2, 128))), jnp.int32)
    lengths, longest = jnp.array([0, 77], jnp.int32), 640 if platform == "cpu" else 1280
    joined = banded(40) & documents(numbers) & padding(lengths)
    holes = jnp.asarray(rng.random((2, 256, 128)) < 0.5).at[:, :, 7].set(False)
    long = Case("causal, in several blocks", UNIDIRECTIONAL, B=1, l_x=longest, l_z=longest)
    if platform == "cpu":
        return [long, Case("a window, documents, padding, capped scores and sinks", joined, cap=2.0, sinks=True)]
    return [
        long,
        Case("causal", UNIDIRECTIONAL, H=4, H_kv=2),
        Case("causal, a head of keys for each", UNIDIRECTIONAL, H_kv=2),
        Case("a window", banded(40)),
        Case("documents", UNIDIRECTIONAL & documents(numbers)),
        Case("documents and padding", documents(numbers) & padding(lengths)),
        Case("a window, documents and padding", joined),
        Case("a window and padding", banded(40) & padding(lengths)),
        Case("padding", padding(lengths)),
        Case("a window to both sides", near(40)),
        Case("a prefix", prefix(jnp.array([9, 60], jnp.int32))),
        Case("an array, with more context", holes, l_z=256),
        Case("capped scores", UNIDIRECTIONAL, cap=2.0),
        Case("sinks", UNIDIRECTIONAL, sinks=True),
        Case("heads of 128 rows", UNIDIRECTIONAL, d_attn=128, d_mid=128),
        Case("heads of 256 rows", UNIDIRECTIONAL, d_attn=256, d_mid=256),
        Case("heads of 192 and 128 rows", UNIDIRECTIONAL, d_attn=192, d_mid=128),
        Case("heads of 12 and 20 rows", banded(40), d_attn=12, d_mid=20),
    ]


def checks(platform: str) -> list[Check]:
    """Return all checks of a platform."""
    kernels = (*RULES, *LIBRARIES.get(platform, ()))
    return [*(_of_attention(case, kernels) for case in cases(platform)), _of_experts(), _of_loss()]


def found(check: Check, platform: str) -> Iterator[Found]:
    """Compare each kernel of a check with the oracle, in each type."""
    expected = check.expected()
    for kernel in check.kernels:
        for dtype in DTYPES[platform]:
            limit = PRODUCTS.get(platform, LIMITS[dtype]) if dtype == "float32" else LIMITS[dtype]
            result = Found(kernel, check.name, dtype, limit, {})
            try:
                values = _values(check, kernel, dtype)
            except Exception as error:  # whatever a compiler or a device raises is a finding
                said = str(error).partition(" is not available: ")[2] if isinstance(error, ValueError) else ""
                reason = {"refused": said.rpartition("; ")[0]} if said else {"failed": _first_line(error)}
                yield result._replace(**reason)
                continue
            yield result._replace(errors={name: error_of(values[name], b) for name, b in expected.items()})


def error_of(found: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest error of a token, as `LIMITS` measures it; infinite if something is not a number."""
    norms, errors = (np.linalg.norm(a.reshape(-1, *a.shape[-2:]), axis=-2) for a in (expected, found - expected))
    error = float((errors / np.maximum(norms, math.sqrt(np.square(norms).mean()))).max())
    return error if math.isfinite(error) else math.inf


def report(results: list[Found]) -> str:
    """Return the results as a Markdown table: a row for each kernel and type."""
    rows = []
    for kernel, dtype in dict.fromkeys((result.kernel, result.dtype) for result in results):
        of_both = [result for result in results if (result.kernel, result.dtype) == (kernel, dtype)]
        taken = [result for result in of_both if not result.refused]
        errors = [
            max((e for result in taken for name, e in result.errors.items() if bool(name) == is_gradient), default=0.0)
            for is_gradient in (False, True)
        ]
        wrong = sum(bool(result.wrong) for result in taken)
        cells = [f"{len(taken)} of {len(of_both)}", *(f"{error:.1g}" for error in errors), f"{of_both[0].limit:g}"]
        rows.append([f"`{kernel}`", dtype, *(cells if taken else [cells[0], "-", "-", "-"]), str(wrong)])
    text = table(["kernel", "type", "cases taken", "largest error", "of gradients", "limit", "wrong"], rows)
    refused = {(result.kernel, result.dtype, result.refused): None for result in results if result.refused}
    said = [f"- `{kernel}` in {dtype} refuses: {reason}" for kernel, dtype, reason in refused]
    wrong = [f"- WRONG: {result.wrong}" for result in results if result.wrong]
    return "\n\n".join(filter(None, [text, "\n".join(wrong), "\n".join(said)]))


def _of(name: str) -> str:
    return f"∂F/∂{name}" if name else "the values"


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"


def _values(check: Check, kernel: str, dtype: str) -> Arrays:
    """The outputs of a kernel, and the gradient of each input."""

    def of_inputs(inputs: Any, E: jax.Array) -> Any:
        outputs, pullback = jax.vjp(lambda inputs: check.function(kernel, inputs), inputs)
        return {"": outputs, **pullback(E.astype(outputs.dtype))[0]}

    inputs = {name: jnp.asarray(a, dtype) for name, a in check.inputs.items()}
    options = OPTIONS.get(jax.default_backend())
    values = jax.jit(of_inputs, compiler_options=options)(inputs, jnp.asarray(check.E, dtype))
    return {name: np.asarray(a, np.float64) for name, a in values.items()}


def _drawn(rng: Any, *shape: int) -> np.ndarray:
    """Normal numbers that bfloat16 has."""
    return np.asarray(jnp.asarray(rng.standard_normal(shape), jnp.bfloat16), np.float64)


def _of_attention(case: Case, kernels: tuple[str, ...]) -> Check:
    rng = np.random.default_rng(1)
    queries, keys = (case.H, case.d_attn, case.B, case.l_x), (case.H_kv, case.d_attn, case.B, case.l_z)
    inputs = {"Q": _drawn(rng, *queries), "K": _drawn(rng, *keys), "V": _drawn(rng, *keys[:1], case.d_mid, *keys[2:])}
    s, E = _drawn(rng, case.H), _drawn(rng, case.H, case.d_mid, case.B, case.l_x)

    def function(kernel: str, inputs: Any) -> jax.Array:
        own = jnp.asarray(s, inputs["Q"].dtype)
        sinks = Weights(Attention(sinks=True).weights, own, sinks=own) if case.sinks else None
        Q, K, V = (inputs[name] for name in "QKV")
        with using(implementation=kernel):
            S = scores(K, Q, heads=True, cap=case.cap, weights=sinks).where(case.mask)
            return V @ (S / math.sqrt(case.d_attn)).softmax()

    expected = functools.cache(lambda: of_oracle(case, inputs, s, E))  # for every kernel
    return Check(case.name, kernels, function, inputs, E, expected)


def of_oracle(case: Case, inputs: Arrays, s: np.ndarray, E: np.ndarray) -> Arrays:
    """Return Ṽ and the gradients of ``F = Σ E ⊙ Ṽ``, by the oracle's attention weights A, which are Ṽ for V = 1::

    Ṽ = V A                     ∂F/∂V = E Aᵀ
    G = A ⊙ (VᵀE − 1 (Ṽ ⊙ E summed over rows)), times 1 − C²/c² if C = c tanh(S/(c √d)) are capped scores
    ∂F/∂Q = K G/√d              ∂F/∂K = Q Gᵀ/√d
    """
    masks = np.asarray(case.mask.dense(case.l_z, case.l_x) if isinstance(case.mask, StructuralMask) else case.mask)
    masks = np.broadcast_to(masks, (case.B, case.l_z, case.l_x))
    found = {name: np.zeros(a.shape) for name, a in ({"": E} | inputs).items()}
    for h, b in np.ndindex(case.H, case.B):
        g = h // (case.H // case.H_kv)
        Q, K, V = (inputs[name][i, :, b] for name, i in zip("QKV", (h, g, g), strict=True))
        A, C = weights_of_oracle(Q, K, masks[b], cap=case.cap, sink=s[h] if case.sinks else None)
        G = A * (V.T @ E[h, :, b] - (V @ A * E[h, :, b]).sum(axis=0)) * (1 - (C / (case.cap or np.inf)) ** 2)
        found[""][h, :, b] = V @ A
        found["Q"][h, :, b] = K @ G / math.sqrt(case.d_attn)
        found["K"][g, :, b] += Q @ G.T / math.sqrt(case.d_attn)
        found["V"][g, :, b] += E[h, :, b] @ A.T
    return found


def weights_of_oracle(
    Q: np.ndarray, K: np.ndarray, mask: np.ndarray, *, cap: float | None = None, sink: Any = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the oracle's attention weights A ``[l_z, l_x]`` of a head, and its capped scores."""
    d, l_z = K.shape
    W_v = np.eye(l_z, d + l_z, d)  # so that V = 1, below the keys
    W = SimpleNamespace(heads=[SimpleNamespace(W_q=np.eye(d), W_k=np.eye(d, d + l_z), W_v=W_v)])
    W.s = None if sink is None else [sink]
    where = {"x_positions": range(Q.shape[1]), "z_positions": range(l_z), "bidirectional": True}
    Z = np.concatenate([K, np.eye(l_z)])
    A = lines.attention(0, Q, Z, W, mask, Attention(cap=cap), **where)
    return A, lines.cap(K.T @ Q / math.sqrt(d), cap)


def _of_experts(R: int = 768, n: int = 5, d_in: int = 128, d_out: int = 256) -> Check:
    """Products of rows with the matrices of their groups: one group has no rows, and some rows have no group."""
    rng = np.random.default_rng(2)
    group = rng.choice([0, 1, 3, 4, 5], size=R, p=[0.5, 0.1, 0.2, 0.1, 0.1])
    inputs = {"X": _drawn(rng, d_in, R), "W": _drawn(rng, n, d_out, d_in)}
    E = _drawn(rng, d_out, R)

    def function(_: str, inputs: Any) -> jax.Array:
        blocks = Blocks.of(jnp.asarray(group, jnp.int32), n)
        return collect(grouped_product(inputs["W"], spread(inputs["X"].T, blocks), blocks), blocks).T

    def expected() -> Arrays:
        X, W, of_none = inputs["X"], inputs["W"], np.zeros((1, d_out, d_in))
        of_row = np.concatenate([W, of_none])[group]
        of_group = [E[:, group == g] @ X[:, group == g].T for g in range(n)]
        return {
            "": np.einsum("roi,ir->or", of_row, X),
            "X": np.einsum("roi,or->ir", of_row, E),
            "W": np.stack(of_group),
        }

    return Check("products with experts", ("experts",), function, inputs, E, expected)


def _of_loss(N_V: int = 1000, d_e: int = 128, l: int = 384) -> Check:
    """The loss of tokens that have weights, some of them 0."""
    rng = np.random.default_rng(3)
    inputs, x = {"X": _drawn(rng, d_e, l), "W_u": _drawn(rng, N_V, d_e) / 8}, rng.integers(N_V, size=l)
    weights = np.maximum(_drawn(rng, l), 0)

    def function(_: str, inputs: Any) -> jax.Array:
        total = log_loss(inputs["X"], inputs["W_u"], jnp.asarray(x), weights=jnp.asarray(weights, jnp.float32))
        return total.reshape(1, 1)

    def expected() -> Arrays:
        P = softmax(inputs["W_u"] @ inputs["X"])
        G = (P - np.eye(N_V)[:, x]) * weights
        loss = -(weights * np.log(P[x, np.arange(l)])).sum()
        return {"": loss.reshape(1, 1), "X": inputs["W_u"].T @ G, "W_u": G @ inputs["X"].T}

    return Check("the loss", ("log_loss",), function, inputs, np.ones((1, 1)), expected)
