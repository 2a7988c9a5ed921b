"""All messages of `algorithms/` for wrong inputs, as calls and what they raise, in messages.txt, a generated file.

    JAX_ENABLE_X64=1 python -m tests.algorithms.messages     # runs the calls again and writes what they raise

A line that begins with ``>>>`` is a call; write one to add it. The calls of `wrong` come from the signatures. Review
the diff of the file.
"""

import dataclasses
import functools
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import algorithms
from algorithms import inside, lines
from tests import cases, family_cases
from tests.algorithms.test_attention import head_params, mh_params
from tests.mixing_lines import Pooled
from tests.own_lines.experts import Experts
from tests.own_lines.latent import LATENT
from tests.own_lines.retention import HYBRID, Retention
from tests.own_lines.sinks import SINKS

FILE = Path(__file__).with_name("messages.txt")
WRONG = ("text", "dtype", "one more axis", "one axis less", "one more column")
"""What `wrong` makes of an argument."""


@functools.cache
def names() -> dict[str, Any]:
    """What the calls name."""
    from algorithms import BERT, LLAMA, PAPER  # noqa: PLC0415

    D = algorithms.DTransformerConfig(L=1, **cases.TINY)
    E = algorithms.ETransformerConfig(L=1, d_f=2, **cases.TINY)
    ED = algorithms.EDTransformerConfig(L_enc=1, L_dec=1, **cases.TINY)
    d, e, ed = map(cases.random_theta, (D, E, ED))
    RMS = PAPER.but(norm=lines.RMSNorm())
    KEY = jax.random.key(0)
    X, sizes = cases.normal(7, 3), {"N_V": 7, "l_max": 5, "H": 2, "d_e": 6, "d_mlp": 4, "L": 1}
    gated = lines.MLP(activation="silu", gated=True, biases=False)
    experts = lines.Experts(n=5, k=2, activation="silu", gated=True, biases=False)
    own = {"D": D, "E": E, "ED": ED, "d": d, "e": e, "ed": ed, "RMS": RMS, "KEY": KEY, "X": X, "SIZES": sizes}
    own |= {"SINKS": SINKS, "LATENT": LATENT, "EXPERTS": experts, "family": family_cases}
    own |= {
        "FIRST": LLAMA.but(mlp=experts, first=(gated.but(d_mlp=9),)),
        "SHARED": PAPER.but(shared_layers=2),
        "HYBRID": HYBRID,
        "Retention": Retention,
        "POOLED": PAPER.but(norm=Pooled()),
        "WIDE": Wide(n=4),
        "by": lambda line: PAPER.but(embedding=lines.Embedding(positions=None), attention=line),
        "theta": lambda config, **fields: cases.random_theta(config)._replace(**fields),
        "attending": lambda theta, **fields: theta._replace(
            layers=theta.layers._replace(attention=theta.layers.attention._replace(**fields))
        ),
        "e_config": lambda **changes: algorithms.ETransformerConfig(**(sizes | changes)),
        "ed_config": lambda **changes: algorithms.EDTransformerConfig(
            **({name: n for name, n in sizes.items() if name != "L"} | {"L_enc": 2, "L_dec": 2} | changes)
        ),
        "sinusoidal": ed._replace(W_p=None, variant=PAPER.but(embedding=lines.Embedding(positions="sinusoidal"))),
        "bert": cases.random_theta(algorithms.ETransformerConfig(L=1, variant=BERT, **cases.TINY)),
        "rms": cases.random_theta(algorithms.DTransformerConfig(L=1, variant=RMS, **cases.TINY)),
        "x": cases.random_tokens(3, n=7),
        "xs": cases.random_tokens(2, 3, n=7),
        "three": cases.random_tokens(3, 3, n=7),
        "XS": cases.normal(7, 2, 3),
        "Q": cases.normal(5, 3),
        "QS": cases.normal(5, 2, 3),
        "W_qkv": head_params(d_z=7),
        "W": mh_params(d_z=7),
        "MASK": jnp.ones((3, 3), bool),
        "MASKS": jnp.ones((3, 3, 3), bool),
        "KEYS": jax.random.split(KEY, 2),
        "config": lambda **changes: algorithms.DTransformerConfig(**(sizes | changes)),
        # Like the tensors of other libraries: a dtype that neither NumPy nor JAX knows.
        "tensor": lambda dtype, *shape: SimpleNamespace(dtype=f"tensor.{dtype}", shape=shape, ndim=len(shape)),
        "wrong": wrong,
        "lacking": lacking,
    }
    modules = {"jax": jax, "jnp": jnp, "np": np, "cases": cases, "dataclasses": dataclasses}
    return vars(algorithms) | vars(lines) | vars(inside) | modules | own


@functools.cache
def right() -> dict[str, dict[str, Any]]:
    """Arguments that each function accepts."""
    n = names()
    x, X, d, e, ed, MASK, KEY = (n[name] for name in ("x", "X", "d", "e", "ed", "MASK", "KEY"))
    xs, epoch, prompt = n["xs"], {"N_epochs": 1, "eta": 0.1}, {"tau": 1.0, "key": KEY}
    lengths = jnp.array([1, 2])
    return {
        "token_embedding": {"v": 1, "W_e": X},
        "positional_embedding": {"l": 1, "W_p": X},
        "single_query_attention": {"e": X[:, 0], "E": X, "W_qkv": n["W_qkv"]},
        "attention": {"X": X, "Z": X, "W_qkv": n["W_qkv"], "mask": MASK, "dropout": 0.1, "key": KEY},
        "mh_attention": {"X": X, "Z": X, "W": n["W"], "mask": MASK, "dropout": 0.1, "key": KEY},
        "scaled_dot_product_attention": {"Q": n["Q"], "K": n["Q"], "V": n["Q"], "mask": MASK},
        "layer_norm": {"e": X[:, 0], "gamma": X[:, 1], "beta": X[:, 2], "epsilon": 0.1},
        "rms_norm": {"e": X[:, 0], "gamma": X[:, 1], "epsilon": 0.1},
        "unembedding": {"e": X[0], "W_u": X},
        "log_loss": {"X": X, "W_u": X.T, "targets": x, "weights": X[0], "b_u": X[0]},
        "ed_transformer": {"z": x, "x": x, "theta": ed, "z_length": 2, "dropout": 0.1, "key": KEY},
        "e_transformer": {"x": x, "theta": e, "length": 2, "dropout": 0.1, "key": KEY},
        "d_transformer": {"x": x, "theta": d, "length": 2, "mask": MASK, "dropout": 0.1, "key": KEY},
        "d_hidden_state": {"x": x, "theta": d, "positions": x, "segments": x},
        "ed_encoding": {"z": x, "theta": ed, "z_length": 2},
        "ed_decoding": {"Z": X[:3], "x": x, "theta": ed, "z_length": 2},
        "ed_training": {"z": xs, "x": xs, "theta": ed, "z_length": lengths, "length": lengths, **epoch},
        "e_training": {"x": xs, "theta": e, "length": lengths, "p_mask": 0.5, "key": KEY, **epoch},
        "d_training": {"x": xs, "theta": d, "length": lengths, **epoch},
        "d_inference": {"x": x, "theta": d, "l_gen": 1, **prompt},
        "ed_inference": {"z": x, "theta": ed, "z_length": 2, **prompt},
    }


class Wide(Experts):
    """A line with a size that configurations have."""

    def sizes(self):
        return {**super().sizes(), "d_mlp": 7}


def lacking(method: str) -> Any:
    """A model whose mixer lacks a method."""
    line = type("Short", (Retention,), {method: getattr(lines.Mixer, method)})()
    return cases.random_theta(names()["config"](variant=algorithms.PAPER.but(attention=line)))


def spoiled(value: Any, how: str) -> Any:
    """An argument that is wrong in one way; the parameters of models, in their first array."""
    if how == "text":
        return "text"
    if isinstance(value, tuple):
        leaves, tree = jax.tree.flatten(value)
        return jax.tree.unflatten(tree, [spoiled(leaves[0], how), *leaves[1:]])
    if jnp.issubdtype(jnp.asarray(value).dtype, jax.dtypes.prng_key):
        return {"dtype": jax.random.key_data(value), "one more axis": value[None]}.get(how, value)
    array = jnp.asarray(value)
    return {
        "dtype": lambda: array.astype(int if jnp.issubdtype(array.dtype, jnp.floating) else float),
        "one more axis": lambda: array[..., None],
        "one axis less": lambda: array[0] if array.ndim else array,
        "one more column": lambda: jnp.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, 1)]) if array.ndim else array,
    }[how]()


def wrong(function: str, argument: str, how: str) -> Any:
    """Call a function with one argument that is wrong; without running it, if all of that is accepted."""
    arguments = right()[function]
    changed = arguments | {argument: spoiled(arguments[argument], how)}
    return jax.eval_shape(lambda: getattr(algorithms, function)(**changed))


def generated() -> list[str]:
    """The calls of `wrong` for all arguments."""
    for name, arguments in right().items():
        assert arguments.keys() <= inspect.signature(getattr(algorithms, name)).parameters.keys()

    def ways(value: Any) -> tuple[str, ...]:
        return WRONG[:1] if isinstance(value, float) else WRONG[:2] if isinstance(value, int) else WRONG

    return [
        f'wrong("{f}", "{a}", "{way}")' for f, of in right().items() for a, value in of.items() for way in ways(value)
    ]


def raised(call: str, scope: dict[str, Any]) -> str:
    """What a call raises: the exception's name and message; "nothing" if that is none."""
    try:
        eval(call, scope)
    except (TypeError, ValueError, NotImplementedError) as error:
        return f"{type(error).__name__}: {' ⏎ '.join(str(error).splitlines())}"
    return "nothing"


def entries() -> Iterator[tuple[str, str]]:
    """The calls of the file, and what each raises."""
    text = FILE.read_text(encoding="utf-8").splitlines()
    for i, line in enumerate(text):
        if line.startswith(">>> "):
            yield line.removeprefix(">>> "), text[i + 1]


def main() -> None:
    """Write the file anew, with its calls, comments and empty lines."""
    scope, written = names(), FILE.read_text(encoding="utf-8").splitlines()
    by_hand = [line for line in written if line.startswith(("#", ">>> ")) or not line]
    kept = [line for line in by_hand if "wrong(" not in line and line != "# from the signatures"]
    while kept and not kept[-1]:
        kept.pop()
    new = []
    for line in [*kept, "", "# from the signatures", *(f">>> {call}" for call in generated())]:
        of_call = raised(line.removeprefix(">>> "), scope) if line.startswith(">>> ") else None
        if "wrong(" not in line or of_call != "nothing":
            new += [line] if of_call is None else [line, of_call]
    FILE.write_text("\n".join(new) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
