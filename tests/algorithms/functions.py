"""Every public function that returns numbers: what is true of all of them is tested on each of these cases.

A case has its arguments for one sequence. Where a batch begins in an argument and in the result is read from the
signature, so a new function costs a row here.
"""

import functools
import inspect
import re
from typing import Any, NamedTuple

import jax
import numpy as np

import algorithms as alg
from algorithms.lines import MTP
from tests import cases
from tests.algorithms.test_attention import head_params, mh_params

EVERY = (*cases.IMPLEMENTATIONS, "auto")
L = 5
D = cases.random_theta(alg.DTransformerConfig(L=1, **cases.TINY))
E = cases.random_theta(alg.ETransformerConfig(L=1, d_f=2, **cases.TINY))
ED = cases.random_theta(alg.EDTransformerConfig(L_enc=1, L_dec=1, **cases.TINY))
WITH_HEAD = cases.random_theta(alg.DTransformerConfig(L=1, **cases.TINY, variant=alg.PAPER.but(mtp=MTP())))
CACHE = jax.eval_shape(lambda: alg.empty_cache(alg.DTransformerConfig(L=1, **cases.TINY)))
CACHE = jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), CACHE)
x, z = (np.asarray(cases.random_tokens(l, n=7, seed=seed)) for seed, l in enumerate((L, 4)))
X, Z, V = (np.asarray(cases.normal(3, l, seed=seed)) for seed, l in enumerate((L, 4, 4)))
W_u, b_u, W_e = (np.asarray(cases.normal(*of, seed=4 + i)) for i, of in enumerate(((7, 3), (7,), (3, 7))))
HEAD, HEADS = head_params(d_x=3, d_z=3), mh_params(d_x=3, d_z=3)
weights = np.array([1.0, 0.5, 0.0, -2.0, 0.0])
NOT_0 = weights + 0.25  # where one is 0, a token has no loss, and its weight no gradient
HOLES = jax.device_put((np.random.default_rng(0).random((4, L)) < 0.5) & (np.arange(L) != 3))
MASKS = {
    "unidirectional": alg.UNIDIRECTIONAL,
    "a band with padding": alg.banded(2) & alg.padding(3),
    "near, with padding": alg.near(2) & alg.padding(3),
    "documents": cases.documents([0, 0, 1, 1, 2]),
    "a prefix, near": alg.prefix(3) & alg.near(3),
    "blocks": alg.blocks(cases.array([0, 0, 1, 1, 2])),
    "holes": HOLES,
    "nothing": alg.padding(0),
}
DROPPED = {"dropout": 0.3, "key": cases.key(0)}
PACKED = {"segments": np.array([0, 0, 1, 1, 1]), "positions": np.array([0, 1, 0, 1, 4])}
HALVES = {"z_segments": np.array([0, 0, 1, 1]), "segments": np.array([0, 0, 1, 1, 1])}
LOGITS, LOSS = {"e": X, "W_u": W_u, "b_u": b_u}, {"X": X, "W_u": W_u, "b_u": b_u}
TEXTS, CONTEXTS = (np.stack([a, a[::-1]]) for a in (x, z))
TAU, ETA = {"tau": cases.array(0.8)}, {"eta": cases.array(0.1)}


class Case(NamedTuple):
    """The floats by which a function is differentiated, as arrays or pytrees, and its other arguments."""

    floats: dict[str, Any]
    others: dict[str, Any]


# name, and what it is a case of → its arguments
CASES = {
    "token_embedding": Case({"W_e": W_e}, {"v": x}),
    "positional_embedding": Case({"W_p": W_e}, {"l": x}),
    "single_query_attention": Case({"e": X[:, 0], "E": Z, "W_qkv": HEAD}, {}),
    "attention": Case({"X": X, "Z": Z, "W_qkv": HEAD}, {"mask": alg.UNIDIRECTIONAL}),
    "mh_attention": Case({"X": X, "Z": Z, "W": HEADS}, {"mask": alg.padding(3)}),
    "mh_attention, holes, dropped": Case({"X": X, "Z": Z, "W": HEADS}, {"mask": HOLES, **DROPPED}),
    "layer_norm": Case({"e": X, "gamma": X[:, 1], "beta": X[:, 2]}, {"epsilon": 0.1}),
    "rms_norm": Case({"e": X, "gamma": X[:, 1]}, {}),
    "unembedding": Case(LOGITS, {}),
    "unembedding, capped": Case(LOGITS, {"cap": 1.5}),
    "log_loss": Case({**LOSS, "weights": weights}, {"targets": x}),
    "log_loss, smoothed, with padding": Case(
        {**LOSS, "weights": weights}, {"targets": x % 5, "label_smoothing": 0.1, "N_V": 5, "cap": 1.5}
    ),
    "token_losses": Case(LOSS, {"targets": x, "label_smoothing": 0.1}),
    "gelu": Case({"x": 3 * X}, {}),
    "gelu_tanh": Case({"x": 3 * X}, {}),
    "relu": Case({"x": X}, {}),
    "d_token_losses": Case({"theta": D, "weights": NOT_0}, {"x": x, **PACKED}),
    "d_token_losses, of columns": Case(
        {"x": X, "theta": D, "weights": NOT_0}, {"targets": x, "mask": alg.BIDIRECTIONAL, "length": 4}
    ),
    "e_token_losses": Case({"theta": E}, {"x": x, "x_tilde": np.where(np.arange(L) == 1, 4, x)}),
    "ed_token_losses": Case({"theta": ED}, {"z": z, "x": x, **HALVES}),
    "mtp_token_losses": Case({"X": X, "theta": WITH_HEAD, "weights": NOT_0}, {"x": x, **PACKED}),
    "mtp_hidden_state": Case({"X": X, "theta": WITH_HEAD}, {"y": x}),
    "d_logits": Case({"theta": D}, {"x": x, **PACKED}),
    "d_logits, of columns": Case({"x": X, "theta": D}, {}),
    "e_logits": Case({"theta": E}, {"x": x, "length": 3}),
    "e_logits, of columns": Case({"x": X, "theta": E}, {}),
    "ed_logits": Case({"theta": ED}, {"z": z, "x": x, "z_length": 3}),
    "ed_logits, of columns": Case({"x": X, "theta": ED}, {"z": z}),
    "read_tokens": Case({"theta": D}, {"cache": CACHE, "x": x[:3], "n": 0}),
    "read_tokens, of columns": Case({"x": X[:, :3], "theta": D}, {"cache": CACHE, "n": 1}),
    "d_hidden_state": Case({"theta": D}, {"x": x}),
    "d_hidden_state, packed": Case({"theta": D}, {"x": x, **PACKED}),
    "d_hidden_state, dropped": Case({"theta": D}, {"x": x, **DROPPED}),
    "d_hidden_state, again in the backward pass": Case({"theta": D}, {"x": x, "remat": True}),
    "d_hidden_state, of columns": Case({"x": X, "theta": D}, {}),
    "d_transformer": Case({"theta": D}, {"x": x}),
    "d_transformer, of columns": Case({"x": X, "theta": D}, {}),
    "e_encoding": Case({"theta": E}, {"x": x, "length": 3}),
    "e_encoding, of columns": Case({"x": X, "theta": E}, {"length": 4}),
    "e_hidden_state": Case({"theta": E}, {"x": x, "length": 3}),
    "e_hidden_state, of columns": Case({"x": X, "theta": E}, {"length": 4}),
    "e_transformer": Case({"theta": E}, {"x": x, "length": 4}),
    "e_transformer, of columns": Case({"x": X, "theta": E}, {"length": 4}),
    "ed_encoding": Case({"theta": ED}, {"z": z, "z_length": 2}),
    "ed_encoding, of columns": Case({"z": Z, "theta": ED}, {"z_length": 3}),
    "ed_decoding": Case({"Z": Z, "theta": ED}, {"x": x, "z_length": 3}),
    "ed_decoding, of columns": Case({"Z": Z, "x": X, "theta": ED}, {"z_length": 3}),
    "ed_hidden_state": Case({"theta": ED}, {"z": z, "x": x, "z_length": 3}),
    "ed_hidden_state, of columns": Case({"x": X, "theta": ED}, {"z": z, "z_length": 3}),
    "ed_transformer": Case({"theta": ED}, {"z": z, "x": x, "z_length": 4}),
    "ed_transformer, of columns": Case({"x": X, "theta": ED}, {"z": z, "z_length": 3}),
    "d_training": Case({"theta": D, **ETA}, {"x": TEXTS, "N_epochs": 1, "length": np.array([5, 0])}),
    "e_training": Case(
        {"theta": E, **ETA}, {"x": TEXTS, "N_epochs": 1, "p_mask": 0.5, "key": cases.key(0), "length": np.array([5, 3])}
    ),
    "ed_training": Case(
        {"theta": ED, **ETA},
        {"z": CONTEXTS, "x": TEXTS, "N_epochs": 1, "z_length": np.array([2, 4]), "length": np.array([0, 5])},
    ),
    "d_inference": Case({"theta": D, **TAU}, {"x": x[:2], "l_gen": 3, "key": cases.key(1)}),
    "e_inference": Case(
        {"theta": E, **TAU}, {"x": np.array([3, 4, 4, 1, 4]), "steps": 2, "key": cases.key(1), "length": 4}
    ),
    "ed_inference": Case({"theta": ED, **TAU}, {"z": z, "key": cases.key(1), "z_length": 4}),
}
for name, mask in MASKS.items():
    of_context = {"K": Z, "V": V} if name not in ("documents", "blocks") else {"K": X[:, ::-1], "V": 2 * X}
    for what, options in ((name, {}), (f"{name}, dropped", DROPPED)):
        CASES[f"scaled_dot_product_attention, {what}"] = Case({"Q": X, **of_context}, {"mask": mask, **options})


def function_of(name: str) -> Any:
    """The function of a case."""
    return getattr(alg, name.partition(",")[0])


def signature_of(name: str) -> inspect.Signature:
    return inspect.signature(function_of(name))


def implementations_of(name: str) -> tuple[str, ...]:
    """Those that may differ."""
    return EVERY if "implementation" in signature_of(name).parameters else ("paper",)


def called(name: str, implementation: str = "auto", **changes: Any) -> Any:
    """What the function of a case returns for its arguments, some of them changed."""
    options = {"implementation": implementation} if implementations_of(name) == EVERY else {}
    return function_of(name)(**CASES[name].floats | CASES[name].others | changes | options)


def returns(name: str, kind: str) -> bool:
    """Whether the function of a case returns arrays or parameters of a kind."""
    return kind in str(signature_of(name).return_annotation)


@functools.cache
def batch_axes(name: str, *, shared: bool = False) -> dict[str, int]:
    """Where a batch begins in each argument of a case that may have one; `shared`: of those that need none."""
    signature, found = signature_of(name), {}
    for n, value in (CASES[name].floats | CASES[name].others).items():
        for kind, axis in _batches_in(signature.parameters[n].annotation, r"\*#batch" if shared else r"\*#?batch"):
            if kind == _kind_of(value):
                found[n] = axis
    return found


def returned_axes(name: str) -> Any:
    """Where a batch begins in what the function of a case returns; None: it is a sum."""
    if function_of(name) is alg.attention:  # whose rows have one of two names
        return 1
    found = [axis for _, axis in _batches_in(signature_of(name).return_annotation, r"\*batch")]
    return tuple(found) if len(found) > 1 else found[0] if found else None


def _batches_in(annotation: Any, batch: str) -> list[tuple[str, int]]:
    found = re.findall(r"(Integer|Float|Bool|Key)\[(.*?)\]", str(annotation))
    return [(kind, i) for kind, axes in found for i, axis in enumerate(axes.split()) if re.fullmatch(batch, axis)]


def _kind_of(value: Any) -> str:
    if isinstance(value, int):
        return "Integer"
    if not hasattr(value, "dtype"):
        return ""
    return (
        "Key"
        if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)
        else {"f": "Float", "b": "Bool"}.get(np.dtype(value.dtype).kind, "Integer")
    )


BATCHED = [name for name in CASES if batch_axes(name) and "cache" not in CASES[name].others]
"""Cases of functions that take a batch; `test_cache` has caches."""


def of_batch(name: str, batch: tuple[int, ...]) -> dict[str, Any]:
    """Other values for each sequence of a batch, of the arguments of a case that have these axes."""
    rng, arguments = np.random.default_rng(1), CASES[name].floats | CASES[name].others

    def drawn(value: Any, axis: int) -> Any:
        if _kind_of(value) == "Key":
            return jax.random.split(value, batch)
        value = np.asarray(value)
        shape = (*value.shape[:axis], *batch, *value.shape[axis:])
        if value.dtype.kind == "f":
            made = np.expand_dims(value, tuple(range(axis, axis + len(batch)))) * (0.5 + rng.random(shape))
        else:
            made = rng.choice(value.ravel(), shape) if value.ndim else 1 + rng.integers(value, size=shape)
        return cases.array(made, value.dtype)

    return {n: drawn(arguments[n], axis) for n, axis in batch_axes(name).items()}
