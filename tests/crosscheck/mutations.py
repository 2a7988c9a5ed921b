"""Wrong edits of the code, each of which the cross-check must locate: it must be able to fail, at the right line."""

import contextlib
import dataclasses
import importlib
import pathlib
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from types import ModuleType

from rich.console import Console

from .algorithms import PSEUDOCODE
from .comparison import OracleCache, Results, compare
from .scenarios import Scenarios

__all__ = ["MUTATIONS", "Mutation", "apply", "check_mutations", "locate"]


@dataclasses.dataclass(frozen=True)
class Mutation:
    """A wrong edit.

    Attributes:
        file: the file of `algorithms/` that it is made in.
        old: text that stands there once.
        new: what is put in its place.
        algorithm, line: what the cross-check must name.
    """

    file: str
    old: str
    new: str
    algorithm: int
    line: str


MUTATIONS: dict[str, Mutation] = {
    "token off by one": Mutation("embedding.py", "e = lookup(W_e, v)", "e = lookup(W_e, v - 1)", 1, "return"),
    "position off by one": Mutation("embedding.py", "e_p = lookup(W_p, l)", "e_p = lookup(W_p, l + 1)", 2, "return"),
    "bias of the query skipped": Mutation("attention.py", 'linear(W_q, e, b_q, "', 'linear(W_q, e, 0 * b_q, "', 3, "1"),
    "1/√d dropped, one query": Mutation(
        "attention.py", "softmax(q @ k / jnp.sqrt(q.shape[0]).astype(q.dtype))", "softmax(q @ k)", 3, "4"
    ),
    "bias of the values skipped": Mutation(
        "attention.py", "linear(W_v, Z, b_v, imp", "linear(W_v, Z, 0 * b_v, imp", 4, "3"
    ),
    "scores not of keys": Mutation("scores.py", "jnp.matmul(K.T, Q,", "jnp.matmul(2 * K.T, Q,", 4, "4"),
    "mask transposed": Mutation("masks.py", "permitted &= t_z <= t_x", "permitted &= t_x <= t_z", 4, "5"),
    "mask without the token itself": Mutation("masks.py", "permitted &= t_z <= t_x", "permitted &= t_z < t_x", 4, "5"),
    "mask of the other polarity": Mutation("scores.py", "jnp.where(Mask, S, -", "jnp.where(~Mask, S, -", 4, "5"),
    "masked scores 0, not −∞": Mutation("scores.py", "jnp.where(Mask, S, -jnp.inf)", "jnp.where(Mask, S, 0)", 4, "5"),
    "1/√d dropped": Mutation("scores.py", "softmax(S / jnp.sqrt(d_attn).astype(S.dtype))", "softmax(S)", 4, "return"),
    "attention weights ignored": Mutation(
        "scores.py", "V_tilde = (V @ A)", "V_tilde = (V @ jnp.full_like(A, 1 / l_z))", 4, "return"
    ),
    "heads in the wrong order": Mutation("attention.py", "Y = Y.reshape(-1,", "Y = Y[::-1].reshape(-1,", 5, "3"),
    "bias of the output skipped": Mutation(
        "attention.py", "linear(W.W_o, Y, W.b_o,", "linear(W.W_o, Y, 0 * W.b_o,", 5, "return"
    ),
    "mean not subtracted": Mutation(
        "normalization.py", "e_hat = (e - m) / jnp.sqrt(v", "e_hat = e / jnp.sqrt(v", 6, "return"
    ),
    "ε misplaced": Mutation(
        "normalization.py", "(e - m) / jnp.sqrt(v + epsilon)", "(e - m) / (jnp.sqrt(v) + epsilon)", 6, "return"
    ),
    "logits not of W_u": Mutation(
        "unembedding.py", "p = unembedding_columns(e, W_u)", "p = unembedding_columns(e, -W_u)", 7, "1"
    ),
    "positions from 1": Mutation(
        "ed_transformer.py", "jnp.arange(l_z), theta.W_e", "1 + jnp.arange(l_z), theta.W_e", 8, "2"
    ),
    "encoder unidirectional": Mutation(
        "ed_transformer.py", "(Z, Z, params.attention, mask,", "(Z, Z, params.attention, UNIDIRECTIONAL,", 8, "5"
    ),
    "encoder layers reversed": Mutation(
        "ed_transformer.py",
        "(theta.encoder, jnp.arange(L_enc))",
        "(theta.encoder, jnp.arange(L_enc)), reverse=True",
        8,
        "5",
    ),
    "decoder bidirectional": Mutation(
        "ed_transformer.py", "params.self_attention, UNIDIRECTIONAL,", "params.self_attention, mask,", 8, "14"
    ),
    "cross weights shared": Mutation("ed_transformer.py", "params.cross_attention", "params.self_attention", 8, "16"),
    "cross-attention of X": Mutation(
        "ed_transformer.py", "X + f.mh_attention(X, Z,", "X + f.mh_attention(X, X,", 8, "16"
    ),
    "norm 4 for norm 5": Mutation("ed_transformer.py", "f.norm(X, params.norm5)", "f.norm(X, params.norm4)", 8, "19"),
    "GELU approximated": Mutation("activations.py", '"gelu": (gelu,', '"gelu": (gelu_tanh,', 9, "7"),
    "no residual": Mutation("e_transformer.py", "X = X + f.mlp(X,", "X = f.mlp(X,", 9, "7"),
    "bias of W_f skipped": Mutation(
        "e_transformer.py", "linear(theta.W_f, X, theta.b_f", "linear(theta.W_f, X, 0 * theta.b_f", 9, "10"
    ),
    "residual of the normalised X": Mutation(
        "d_transformer.py", "X = X + f.mh_attention(", "X = X_tilde + f.mh_attention(", 10, "6"
    ),
    "MLP of the residual stream": Mutation("d_transformer.py", "f.mlp(X_tilde, params", "f.mlp(X, params", 10, "8"),
    "no final norm": Mutation("d_transformer.py", "X = f.norm(X, theta.norm)", "X = +X", 10, "10"),
    "first layer twice": Mutation(
        "d_transformer.py",
        "(theta.layers, jnp.arange(L))",
        "(jax.tree.map(lambda a: a.at[1].set(a[0]), theta.layers), jnp.arange(L))",
        10,
        "5",
    ),
    "target off by one": Mutation(
        "training.py",
        "theta, z_length=l_z)  # line 4, up to the softmax\n    loss = log_loss(X, _unembedding(theta), jnp.roll(x, -1)",
        "theta, z_length=l_z)  # line 4, up to the softmax\n    loss = log_loss(X, _unembedding(theta), x",
        11,
        "5",
    ),
    "uphill": Mutation("training.py", "sgd = optax.sgd(eta)", "sgd = optax.sgd(-eta)", 11, "6"),
    "what is masked and what is not": Mutation(
        "training.py", "x.shape), mask_token, x)", "x.shape), x, mask_token)", 12, "5"
    ),
    "padding masked": Mutation(
        "training.py",
        "(x_tilde == mask_token(theta.W_e.shape[1])) & (t < l)",
        "(x_tilde == mask_token(theta.W_e.shape[1]))",
        12,
        "7",
    ),
    "target already masked": Mutation(
        "training.py",
        "log_loss(X, _unembedding(theta), x, weights",
        "log_loss(X, _unembedding(theta), x_tilde, weights",
        12,
        "9",
    ),
    "padding in the loss": Mutation(
        "training.py",
        "(jnp.where(t < l, x, 0), theta)  # line 4, up to the softmax\n    loss = log_loss(X, _unembedding(theta), jnp.roll(x, -1), weights=_weights(t < l - 1, X))",
        "(jnp.where(t < l, x, 0), theta)  # line 4, up to the softmax\n    loss = log_loss(X, _unembedding(theta), jnp.roll(x, -1), weights=_weights(t < l, X))",
        13,
        "5",
    ),
    "column off by one": Mutation("inference.py", "p = P[:, l + i - 1]", "p = P[:, l + i - 2]", 14, "4"),
    "temperature inverted": Mutation(
        "inference.py", "exponent = 1 / jnp.where(tau == 0, 1, tau)", "exponent = jnp.where(tau == 0, 1, tau)", 14, "5"
    ),
    "one key for all tokens": Mutation(
        "inference.py",
        "sample(p, tau, jax.random.fold_in(key, i))",
        "sample(p, tau, jax.random.fold_in(key, 0))",
        14,
        "5",
    ),
    "prompt in the result": Mutation(
        "inference.py", "y = x[l:]  # return", "y = x[l - 1 : -1]  # return", 14, "return"
    ),
    "no bos_token": Mutation("inference.py", ".at[0].set(bos_token(N_V))", ".at[0].set(0)", 15, "1"),
    "stops early": Mutation("inference.py", "& (length < l_max)", "& (length < l_max - 1)", 15, "3"),
    "column of the step before": Mutation("inference.py", "p = P[:, length - 1]", "p = P[:, length - 2]", 15, "5"),
    "token written too late": Mutation(
        "inference.py", "x_hat.at[length].set(y)", "x_hat.at[length + 1].set(y)", 15, "7"
    ),
}
"""What was changed → the edit. Those of STYLE.md's list, and at least one for every algorithm."""


def apply(mutation: Mutation, root: pathlib.Path, copy: pathlib.Path) -> None:
    """Copy the package `algorithms` and make an edit in the copy.

    Args:
        mutation: the edit.
        root: the root of the repository.
        copy: the folder that the copy of the package is put into.

    Raises:
        ValueError: if the text to replace does not stand there exactly once.
    """
    edited = _edited(mutation, root)
    shutil.copytree(root / "algorithms", copy / "algorithms", ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "algorithms" / mutation.file).write_text(edited, "utf-8")


def _edited(mutation: Mutation, root: pathlib.Path) -> str:
    text = (root / "algorithms" / mutation.file).read_text("utf-8")
    if text.count(mutation.old) != 1:
        raise ValueError(
            f"{mutation.file}: expected the text of a mutation once, found it {text.count(mutation.old)} times: "
            f"{mutation.old!r}; bring the mutation up to date"
        )
    return text.replace(mutation.old, mutation.new)


@contextlib.contextmanager
def imported(root: pathlib.Path) -> Iterator[ModuleType]:
    """Import the package `algorithms` of another root, as long as the context lasts.

    The tests' checks of signatures remember the classes that they saw first, and so stay with the own package.
    """
    finders = list(sys.meta_path)
    sys.meta_path[:] = [finder for finder in finders if not type(finder).__module__.startswith("jaxtyping")]
    own = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "algorithms"}
    for name in own:
        del sys.modules[name]
    sys.path.insert(0, str(root))
    try:
        yield importlib.import_module("algorithms")
    finally:
        sys.path.remove(str(root))
        sys.meta_path[:] = finders
        for name in [name for name in sys.modules if name.split(".")[0] == "algorithms"]:
            del sys.modules[name]
        sys.modules.update(own)


def locate(
    mutation: Mutation,
    root: pathlib.Path,
    seed: int,
    cache: OracleCache,
    numbers: Sequence[int] = tuple(sorted(PSEUDOCODE)),
) -> Results:
    """Make an edit in a copy, and cross-check the copy until the first algorithm that differs.

    Args:
        mutation: the edit.
        root: the root of the repository.
        seed: of the inputs.
        cache: what the oracle computed for earlier mutations; filled.
        numbers: the algorithms to check, in order.
    """
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder).resolve()
        apply(mutation, root, copy)
        with imported(copy) as package:
            scenarios = Scenarios(package, seed=seed, sizes={}, implementation="paper")
            return compare(scenarios, copy, numbers, cache, until_first=True)


def check_mutations(names: Sequence[str], root: pathlib.Path, seed: int, console: Console) -> int:
    """Check that each mutation is located at its line; print one line for each, and return the exit status.

    Raises:
        ValueError: for a name that is none.
    """
    cache: OracleCache = {}
    missed = count = 0
    unknown = sorted(set(names) - set(MUTATIONS))
    if unknown:
        raise ValueError(f"--mutations: expected names among {', '.join(MUTATIONS)}; got {', '.join(unknown)}")
    for name in names:
        _edited(MUTATIONS[name], root)
    for count, name in enumerate(names, 1):
        mutation = MUTATIONS[name]
        first = locate(mutation, root, seed, cache).first
        wanted = (mutation.algorithm, mutation.line)
        found = first is not None and first[:2] == wanted
        missed += not found
        where = "nothing differs" if first is None else f"Algorithm {first[0]}, line {first[1]} ({first[2]})"
        verdict = "located" if found else f"EXPECTED Algorithm {wanted[0]}, line {wanted[1]}"
        console.print(f"{count:3} {name} [{mutation.file}]: {where}: {verdict}", markup=False, highlight=False)
    console.print(f"{count - missed} of {count} mutations located", highlight=False)
    return 1 if missed else 0
