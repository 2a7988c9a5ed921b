"""Wrong edits of `algorithms/`, each of which a named test must catch: `python -m tests.mutations`.

    python -m tests.mutations               all of them; exit status 1 if one survives
    python -m tests.mutations "uphill" …    those
    python -m tests.mutations --list        their names, and the tests that each has to face

Every edit is made in a scratch copy of the tree, never in the tree itself. The edits of single lines of the pseudocode
are those that the cross-check must locate; the others are here: derivatives, masks, dropout, keys, padding, starts.
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from tests.crosscheck.mutations import MUTATIONS as OF_LINES
from tests.crosscheck.mutations import Mutation, apply

ROOT = pathlib.Path(__file__).resolve().parents[2]

FURTHER: dict[str, Mutation] = {
    # attention
    "1/√d dropped, dense": Mutation(
        "dense_attention.py", "scale = Q.shape[0] ** -0.5\n    S =", "scale = 1.0\n    S =", 4, "return"
    ),
    "1/√d dropped, blockwise": Mutation(
        "blockwise_attention.py",
        "Q = blocks.padded(Q * jnp.asarray(Q.shape[0] ** -0.5, Q.dtype), primary=True)",
        "Q = blocks.padded(Q, primary=True)",
        4,
        "return",
    ),
    "mask ignored, dense": Mutation(
        "dense_attention.py", "softmax(jnp.where(Mask, S, -jnp.inf))", "softmax(S)", 4, "5"
    ),
    "mask ignored, blockwise": Mutation(
        "blockwise_attention.py", "S = jnp.where(blocks.permitted(j, i), S, -jnp.inf)", "S = +S", 4, "5"
    ),
    "sum not rescaled": Mutation("blockwise_attention.py", "s = s * rescale + weights", "s = s + weights", 4, "return"),
    "last block of the context not visited": Mutation(
        "blockwise_attention.py",
        "((i + 1) * self.b_x - 1) // self.b_z + 1",
        "((i + 1) * self.b_x - 1) // self.b_z",
        4,
        "5",
    ),
    "softmax Jacobian without aᵀg": Mutation(
        "dense_attention.py", "return A * (g - (A * g).sum(axis=0, keepdims=True))", "return A * g", 4, "return"
    ),
    "δ dropped": Mutation(
        "blockwise_attention.py", "product(V_j.T, E_i) * D - delta_i", "product(V_j.T, E_i) * D", 4, "return"
    ),
    "columns of −∞ are 0/0": Mutation(
        "unembedding.py", "jnp.where(denominator == 0, 1, denominator)", "denominator", 4, "return"
    ),
    "softmax over the wrong axis": Mutation(
        "unembedding.py", "numerator.sum(axis=0, keepdims=True)", "numerator.sum(axis=-1, keepdims=True)", 7, "1"
    ),
    "dropped weights not made up for": Mutation("scores.py", "A / (1 - dropout), 0)", "A, 0)", 4, "return"),
    "heads drop the same weights": Mutation(
        "scores.py", "lambda h: fold_in(key, h)", "lambda h: fold_in(key, 0 * h)", 5, "2"
    ),
    "all columns drop the same": Mutation("dropout.py", " ^ word_of_column[None, :]", " ^ 0 * word_of_column", 10, "8"),
    "last tile left out": Mutation("tiles.py", "return put(whole * n, out, H * B % n)", "return out", 4, "return"),
    "dropped activations not made up for": Mutation("dropout.py", "X / (1 - rate), 0)", "X, 0)", 10, "8"),
    # masks
    "band too wide": Mutation("masks.py", "t_x - self.width < t_z", "t_x - self.width <= t_z", 4, "5"),
    "padding attended": Mutation("masks.py", "t_z < self.length", "t_z <= self.length", 4, "5"),
    "conjunction of the longer": Mutation(
        "masks.py", "other.length, jnp.minimum)", "other.length, jnp.maximum)", 4, "5"
    ),
    "conjunction of one": Mutation(
        "masks.py",
        "self.unidirectional or other.unidirectional",
        "self.unidirectional and other.unidirectional",
        4,
        "5",
    ),
    "documents attend the others": Mutation(
        "masks.py", "self.documents_z[t_z] == self", "self.documents_z[t_z] != self", 4, "5"
    ),
    # norms, activations, embeddings, the loss
    "variance unbiased": Mutation(
        "normalization.py",
        "v = jnp.square(e - m).mean(axis=0, keepdims=True)  # line 2",
        "v = e.var(axis=0, ddof=1, keepdims=True)  # line 2",
        6,
        "2",
    ),
    "layer norm over tokens": Mutation(
        "normalization.py",
        "m = e.mean(axis=0, keepdims=True)  # line 1",
        "m = e.mean(axis=-1, keepdims=True)  # line 1",
        10,
        "5",
    ),
    "β skipped": Mutation(
        "normalization.py",
        "as_columns(gamma, X) + as_columns(beta, X)  # return",
        "as_columns(gamma, X)  # return",
        6,
        "return",
    ),
    "mean of RMSnorm": Mutation(
        "normalization.py",
        "e_hat = e / jnp.sqrt(v + epsilon) *",
        "e_hat = (e - e.mean()) / jnp.sqrt(v + epsilon) *",
        6,
        "return",
    ),
    "no derivative through the variance": Mutation(
        "normalization.py", " - x_hat * (g * x_hat).mean(axis=0, keepdims=True))", ")", 13, "6"
    ),
    "ReLU for GELU": Mutation("activations.py", '"gelu": (gelu,', '"gelu": (relu,', 10, "8"),
    "GELU for ReLU": Mutation("activations.py", '"relu": (relu,', '"relu": (gelu,', 8, "7"),
    "IDs count from the end": Mutation("embedding.py", "(v < 0) | (v > n)", "v > n", 1, "return"),
    "IDs wrap": Mutation("embedding.py", "(v < 0) | (v > n)", "v < 0", 1, "return"),
    "sinusoids of the paper from 0": Mutation(
        "embedding.py", "first = 1 if base is None else 0", "first = 0", 2, "return"
    ),
    "sine and cosine exchanged": Mutation(
        "embedding.py", "[np.sin(angle), np.cos(angle)]", "[np.cos(angle), np.sin(angle)]", 2, "return"
    ),
    "gradient of the bias skipped": Mutation(
        "linear.py", "db = dY_2.sum(axis=1, dtype=dtype)", "db = 0 * dY_2.sum(axis=1, dtype=dtype)", 13, "6"
    ),
    "groups of rows in another order": Mutation(
        "linear.py", "W.reshape(groups, -1, W.shape[-1])", "W.reshape(groups, -1, W.shape[-1])[::-1]", 4, "1"
    ),
    "weights of the loss ignored": Mutation(
        "loss.py", "if weights is None else (weights * jnp", "if weights is None else (1 * jnp", 13, "5"
    ),
    "target not in the gradient": Mutation("loss.py", "(P - q) * dlosses[None])", "P * dlosses[None])", 13, "6"),
    "smoothing dropped": Mutation("loss.py", "of_target + label_smoothing * Y.mean(axis=0)", "of_target", 13, "5"),
    # transformers
    "padding read": Mutation(
        "sublayers.py", "jnp.asarray(length)[..., None], x, 0)", "jnp.asarray(length)[..., None], x, x)", 9, "2"
    ),
    "padding of the sequence attended": Mutation(
        "e_transformer.py", "mask = StructuralMask(length=length)", "mask = StructuralMask()", 9, "5"
    ),
    "tied although W_u is given": Mutation(
        "d_transformer.py", "theta.W_e.T if theta.W_u is None else theta.W_u", "theta.W_e.T", 10, "return"
    ),
    "output bias skipped": Mutation("e_transformer.py", "(X, W_u, theta.b_u)", "(X, W_u)", 9, "return"),
    "embedding not scaled": Mutation("sublayers.py", "if self.variant.scale_embedding:", "if False:", 8, "2"),
    "packed documents attend each other": Mutation(
        "d_transformer.py", "UNIDIRECTIONAL & documents(segments)", "UNIDIRECTIONAL", 10, "6"
    ),
    # training, inference, initialisation
    "mask_token is another": Mutation("notation.py", "return N_V - 3", "return N_V - 4", 12, "5"),
    "eos_token is another": Mutation("notation.py", "return N_V - 1", "return N_V - 3", 15, "3"),
    "the same masks for all sequences": Mutation(
        "training.py", "jax.random.fold_in(jax.random.fold_in(key, i), n)", "jax.random.fold_in(key, i)", 12, "5"
    ),
    "the same masks in all epochs": Mutation(
        "training.py", "jax.random.fold_in(jax.random.fold_in(key, i), n)", "jax.random.fold_in(key, n)", 12, "5"
    ),
    "padding of the sequence poisons": Mutation(
        "training.py", "ed_hidden_state(z, jnp.where(t < l, x, 0), theta", "ed_hidden_state(z, x, theta", 11, "4"
    ),
    "greedy ignored": Mutation(
        "inference.py", "jnp.where(tau == 0, jnp.argmax(p),", "jnp.where(tau < 0, jnp.argmax(p),", 14, "5"
    ),
    "τ = ∞ not uniform": Mutation(
        "inference.py", "jnp.where(exponent == 0, 0, jnp.log(p)", "jnp.where(exponent < 0, 0, -jnp.log(p)", 14, "5"
    ),
    "padded with another token": Mutation(
        "inference.py", "jnp.full(l_max, eos_token(N_V), jnp.int32)", "jnp.full(l_max, 0, jnp.int32)", 15, "1"
    ),
    "one key for all draws": Mutation(
        "inference.py", "jax.random.fold_in(key, length - 1)", "jax.random.fold_in(key, 0)", 15, "6"
    ),
    "one key for all matrices": Mutation("initialization.py", "self._drawn += 1", "self._drawn += 0", 10, ""),
    "Glorot by columns only": Mutation("initialization.py", "(6 / (shape[-2] + shape[-1]))", "(6 / shape[-1])", 10, ""),
    "residual writes not scaled": Mutation(
        "initialization.py", "deviation=0.02 / self._residual_writes**0.5", "deviation=0.02", 10, ""
    ),
}
"""Name → the edit, with the algorithm and the line that it spoils (no line: the initialisers)."""

MUTATIONS = OF_LINES | FURTHER

ATTENTION, TRANSFORMERS, TRAINING = (
    "tests/algorithms/test_attention.py",
    "tests/algorithms/test_transformers.py",
    "tests/algorithms/test_training_algorithms.py",
)
BACKWARD, INFERENCE, LOSS = (
    "tests/algorithms/test_backward.py",
    "tests/algorithms/test_inference.py",
    "tests/algorithms/test_loss.py",
)
THE_ORACLES = f"{TRANSFORMERS}::test_the_transformers_are_the_oracles"

# The tests that an edit has to face: those of its file, where it is one of these, or else those of its algorithm.
OF_FILE: dict[str, Sequence[str]] = {
    "dense_attention.py": (
        f"{ATTENTION}::test_a_structural_mask_is_what_it_says[dense]",
        f"{BACKWARD}::test_attention[dense-none]",
    ),
    "blockwise_attention.py": (f"{ATTENTION}::test_a_structural_mask_is_what_it_says[blockwise]", BACKWARD),
    "dropout.py": ("tests/algorithms/test_dropout.py",),
    "initialization.py": ("tests/algorithms/test_initialization.py",),
    "linear.py": ("tests/algorithms/test_linear.py", f"{TRAINING}::test_d_training_is_the_oracles"),
    "loss.py": (LOSS,),
    "masks.py": ("tests/algorithms/test_masks.py",),
    "tiles.py": ("tests/algorithms/test_tiles.py",),
    "sublayers.py": (f"{TRANSFORMERS}::test_padding_of_the_sequence_is_not_there", "tests/algorithms/test_variants.py"),
}
OF_ALGORITHM: dict[int, Sequence[str]] = {
    1: ("tests/algorithms/test_embedding.py",),
    2: ("tests/algorithms/test_embedding.py",),
    3: (f"{ATTENTION}::test_single_query_attention_is_the_oracles",),
    4: (ATTENTION,),
    5: (f"{ATTENTION}::test_mh_attention_is_the_oracles", f"{ATTENTION}::TestDropout"),
    6: ("tests/algorithms/test_normalization.py",),
    7: ("tests/algorithms/test_unembedding.py",),
    8: (f"{THE_ORACLES}[ed-paper]",),
    9: (
        f"{THE_ORACLES}[e-paper]",
        f"{TRANSFORMERS}::test_padding_of_the_sequence_is_not_there",
        "tests/algorithms/test_variants.py",
    ),
    10: (f"{THE_ORACLES}[d-paper]", f"{TRANSFORMERS}::test_packed_documents_are_as_each_by_itself"),
    11: (f"{TRAINING}::test_ed_training_is_the_oracles",),
    12: (f"{TRAINING}::test_e_training_is_the_oracles_with_the_masks_of_its_keys",),
    13: (f"{TRAINING}::test_d_training_is_the_oracles",),
    14: (INFERENCE,),
    15: (INFERENCE,),
}


def tests_of(mutation: Mutation) -> Sequence[str]:
    """The tests that an edit has to face, as pytest names them."""
    return OF_FILE.get(mutation.file) or OF_ALGORITHM[mutation.algorithm]


def catcher(mutation: Mutation) -> str | None:
    """Make an edit in a copy of the tree, and run its tests there until one fails.

    Args:
        mutation: the edit.

    Returns:
        the name of the test that failed; None if none did.

    Raises:
        ValueError: if the text to replace does not stand there exactly once.
        RuntimeError: if the tests could not be run.
    """
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        copy = pathlib.Path(folder)
        apply(mutation, ROOT, copy)
        shutil.copytree(ROOT / "tests", copy / "tests", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", copy)
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests_of(mutation)]
        # compiling is what takes the time
        environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
        run = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    if run.returncode == 0:
        return None
    failed = re.search(r"^FAILED tests/(\S+)", run.stdout, re.MULTILINE)
    if run.returncode != 1 or failed is None:
        raise RuntimeError(
            f"the tests {' '.join(tests_of(mutation))} did not run:\n{run.stdout[-2000:]}{run.stderr[-2000:]}"
        )
    return failed.group(1)


def say(line: str) -> None:
    """Write a line at once, though the output be piped."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutations to try (default: all)")
    parser.add_argument("--list", action="store_true", help="print the mutations and their tests, and try none")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="how many at a time")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in MUTATIONS]
    if unknown:
        parser.error(f"expected names that --list prints, got {', '.join(map(repr, unknown))}")
    chosen = options.names or list(MUTATIONS)
    if options.list:
        for name in chosen:
            m = MUTATIONS[name]
            say(f"{name}: {m.file}, Algorithm {m.algorithm}, line {m.line or '–'}: {' '.join(tests_of(m))}")
        return 0
    survivors = []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for name, caught_by in zip(chosen, pool.map(lambda name: catcher(MUTATIONS[name]), chosen), strict=True):
            say(f"{name}: {'SURVIVED' if caught_by is None else caught_by}")
            survivors += [name] if caught_by is None else []
    say(f"{len(chosen) - len(survivors)} of {len(chosen)} mutations caught")
    return 1 if survivors else 0
