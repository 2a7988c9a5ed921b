"""Wrong edits of Algorithms 1, 2 and 6 and of what layers are made of."""

from .mutation import Mutation

__all__ = ["COMPONENT_MUTATIONS"]

T = "tests/algorithms"
EMBEDDING = (f"{T}/test_embedding.py",)
NARROW = (f"{T}/test_narrow_types.py",)
POSITION_WISE = (f"{T}/test_backward.py::test_position_wise_rules",)
NORMS = (f"{T}/test_normalization.py",)
LINEAR = (f"{T}/test_linear.py",)
DROPOUT = (f"{T}/test_dropout.py",)
ACTIVATION = (f"{T}/test_activation.py",)
LOSS = (f"{T}/test_loss.py",)
ED_ORACLE = (f"{T}/test_transformers.py::test_the_transformers_are_the_oracles[ed-paper]",)
E_ORACLE = (f"{T}/test_transformers.py::test_the_transformers_are_the_oracles[e-paper]",)
D_ORACLE = (f"{T}/test_transformers.py::test_the_transformers_are_the_oracles[d-paper]",)
D_TRAINING = (f"{T}/test_training_algorithms.py::test_d_training_is_the_oracles",)

COMPONENT_MUTATIONS: dict[str, Mutation] = {
    # Embeddings: Algorithms 1 and 2
    "token off by one": Mutation(
        "algorithms/alg01_embedding.py",
        "token_embedding",
        "return",
        "W_e[:, v]",
        "W_e[:, v - 1]",
        1,
        "return",
        EMBEDDING,
    ),
    "position off by one": Mutation(
        "algorithms/alg01_embedding.py",
        "positional_embedding",
        "return",
        "W_p[:, l]",
        "W_p[:, l + 1]",
        2,
        "return",
        EMBEDDING,
    ),
    "IDs count from the end": Mutation(
        "algorithms/ops/lookup.py", "one_or_nan", "return", "(v >= 0) & (v < n), 1.0", "v < n, 1.0", 1, None, EMBEDDING
    ),
    "IDs wrap": Mutation(
        "algorithms/ops/lookup.py", "one_or_nan", "return", "(v >= 0) & (v < n), 1.0", "v >= 0, 1.0", 1, None, EMBEDDING
    ),
    "IDs stay as narrow as they came": Mutation(
        "algorithms/machinery/arrays.py",
        "as_ids",
        "return",
        "jnp.asarray(x).astype(int)",
        "jnp.asarray(x)",
        1,
        None,
        NARROW,
    ),
    "sinusoids of the paper from 0": Mutation(
        "algorithms/alg01_embedding.py",
        "sinusoidal_positional_embedding",
        "first",
        "first = 1 if base is None else 0",
        "first = 0",
        2,
        None,
        EMBEDDING,
    ),
    "sine and cosine exchanged": Mutation(
        "algorithms/alg01_embedding.py",
        "sinusoid",
        "return",
        "[xp.sin(angle), xp.cos(angle)]",
        "[xp.cos(angle), xp.sin(angle)]",
        8,
        "2",
        EMBEDDING,
        "VASWANI",
    ),
    # Layer norm, activations, affine maps and dropout: Algorithm 6, and what the layers are made of
    "mean not subtracted": Mutation(
        "algorithms/alg06_layer_norm.py",
        "layer_norm",
        "return",
        "e_hat = (e - m) / jnp.sqrt(v",
        "e_hat = e / jnp.sqrt(v",
        6,
        "return",
        NORMS,
    ),
    "ε misplaced": Mutation(
        "algorithms/alg06_layer_norm.py",
        "layer_norm",
        "return",
        "(e - m) / jnp.sqrt(v + epsilon)",
        "(e - m) / (jnp.sqrt(v) + epsilon)",
        6,
        "return",
        NORMS,
    ),
    "variance unbiased": Mutation(
        "algorithms/alg06_layer_norm.py",
        "layer_norm",
        "2",
        "v = jnp.square(e - m).mean(axis=0, keepdims=True)",
        "v = e.var(axis=0, ddof=1, keepdims=True)",
        6,
        "2",
        NORMS,
    ),
    "β skipped": Mutation(
        "algorithms/alg06_layer_norm.py",
        "layer_norm",
        "return",
        "as_columns(gamma, e) + as_columns(beta, e)",
        "as_columns(gamma, e)",
        6,
        "return",
        NORMS,
    ),
    "layer norm over tokens": Mutation(
        "algorithms/alg06_layer_norm.py",
        "layer_norm",
        "1",
        "m = e.mean(axis=0, keepdims=True)",
        "m = e.mean(axis=-1, keepdims=True)",
        8,
        "6",
        ED_ORACLE,
    ),
    "mean of RMSnorm": Mutation(
        "algorithms/alg06_layer_norm.py",
        "rms_norm",
        "return",
        "e_hat = e / jnp.sqrt(v + epsilon) *",
        "e_hat = (e - e.mean()) / jnp.sqrt(v + epsilon) *",
        6,
        "return",
        NORMS,
        "LLAMA",
    ),
    "β skipped, by hand": Mutation(
        "algorithms/ops/normalization.py",
        "_layer_norm_forward",
        "e_hat",
        "as_columns(gamma, e) + as_columns(beta, e)",
        "as_columns(gamma, e)",
        6,
        None,
        POSITION_WISE,
    ),
    "no derivative through the variance": Mutation(
        "algorithms/ops/normalization.py",
        "_backward",
        "dX",
        " - x_hat * (g * x_hat).mean(axis=0, keepdims=True))",
        ")",
        13,
        None,
        POSITION_WISE,
    ),
    "GELU approximated": Mutation(
        "algorithms/ops/activation.py", "", "_FUNCTIONS", '"gelu": (gelu,', '"gelu": (gelu_tanh,', 9, "7", E_ORACLE
    ),
    "ReLU for GELU": Mutation(
        "algorithms/ops/activation.py", "", "_FUNCTIONS", '"gelu": (gelu,', '"gelu": (relu,', 9, "7", D_ORACLE
    ),
    "GELU for ReLU": Mutation(
        "algorithms/ops/activation.py", "", "_FUNCTIONS", '"relu": (relu,', '"relu": (gelu,', 8, "7", ED_ORACLE
    ),
    "gradient of the bias skipped": Mutation(
        "algorithms/ops/linear.py",
        "_backward",
        "db",
        "dY.sum(axis=columns_of_Y, dtype=dtype)",
        "0 * dY.sum(axis=columns_of_Y, dtype=dtype)",
        13,
        None,
        (*LINEAR, *D_TRAINING),
    ),
    "groups of rows in another order": Mutation(
        "algorithms/ops/products.py",
        "_by_groups",
        "W_g",
        "W.reshape(groups, -1, W.shape[-1])",
        "W.reshape(groups, -1, W.shape[-1])[::-1]",
        4,
        None,
        LINEAR,
    ),
    "all columns drop the same": Mutation(
        "algorithms/ops/dropout.py",
        "keep_mask",
        "word",
        " ^ word_of_column[None, :]",
        " ^ 0 * word_of_column",
        10,
        None,
        DROPOUT,
    ),
    "dropped activations not made up for": Mutation(
        "algorithms/ops/dropout.py", "dropout", "return", "X / (1 - rate), 0)", "X, 0)", 10, None, DROPOUT
    ),
    # What only a chunk, a block or a tail shows: each caught by the tests of its own file
    "a token's last place alone": Mutation(
        "algorithms/ops/lookup.py",
        "_backward",
        "dW",
        ".at[v].add(jnp.moveaxis(dE, 0, -1))",
        ".at[v].set(jnp.moveaxis(dE, 0, -1))",
        1,
        None,
        (f"{T}/test_lookup.py",),
    ),
    "a band begins a block too late": Mutation(
        "algorithms/ops/attention/blockwise.py",
        "_Blocks._context_of",
        "first",
        "i * self.b_x - mask.width + 1, 0)",
        "i * self.b_x - mask.width + 2, 0)",
        4,
        None,
        (f"{T}/test_blockwise.py",),
    ),
    "GELU's derivative without the density": Mutation(
        "algorithms/ops/activation.py",
        "_gelu_derivative",
        "return",
        "return _normal_cdf(x) + x * phi",
        "return _normal_cdf(x) + phi",
        9,
        None,
        ACTIVATION,
    ),
    "GELU by erf": Mutation(
        "algorithms/ops/activation.py",
        "_normal_cdf",
        "return",
        "jax.lax.erfc(-x * math.sqrt(1 / 2)) / 2",
        "(1 + jax.lax.erf(x * math.sqrt(1 / 2))) / 2",
        9,
        None,
        ACTIVATION,
    ),
    "rows of an overlap counted twice": Mutation(
        "algorithms/ops/chunked_log_loss.py",
        "_through_rows.of_chunk",
        "dX_v",
        "jnp.where(is_new, dY, 0)",
        "jnp.where(True, dY, 0)",
        13,
        None,
        LOSS,
    ),
    "smoothing over the padding, too": Mutation(
        "algorithms/ops/chunked_log_loss.py",
        "_at_target",
        "return",
        "entry + s / N_V *",
        "entry + s / Y.shape[0] *",
        13,
        None,
        LOSS,
    ),
    "smoothing over the padding, too, in the gradient": Mutation(
        "algorithms/ops/chunked_log_loss.py",
        "_through_rows.of_chunk",
        "q",
        "q + label_smoothing / N_V *",
        "q + label_smoothing / n *",
        13,
        None,
        LOSS,
    ),
}
"""What was changed → the edit."""
