"""Wrong edits of Algorithms 1 to 6 and of what layers are made of."""

from .mutation import Mutation

__all__ = ["OF_COMPONENTS"]

T = "tests/algorithms"
EMBEDDING = (f"{T}/test_embedding.py",)
NARROW = (f"{T}/test_narrow_types.py",)
SINGLE_QUERY = (f"{T}/test_attention.py::test_single_query_attention_is_the_oracles",)
ATTENTION = (f"{T}/test_attention.py",)
ATTENTION_DROPOUT = (f"{T}/test_attention.py::TestDropout",)
HEADS = (f"{T}/test_attention.py::test_mh_attention_is_the_oracles",)
DENSE = (f"{T}/test_attention.py::test_a_structural_mask_is_what_it_says[dense]",)
DENSE_BACKWARD = (f"{T}/test_backward.py::test_attention[unidirectional-dense]",)
BLOCKWISE = (f"{T}/test_attention.py::test_a_structural_mask_is_what_it_says[blockwise]",)
BACKWARD = (f"{T}/test_backward.py",)
POSITION_WISE = (f"{T}/test_backward.py::test_position_wise_rules",)
TILES = (f"{T}/test_tiles.py",)
PLATFORM = (f"{T}/test_platform.py",)
BATCHES = (f"{T}/test_batch_axes.py",)
MASKS_OF_EACH = (f"{T}/test_batch_axes.py::test_masks_of_one_and_of_each_sequence",)
MASKS = (f"{T}/test_masks.py",)
NORMS = (f"{T}/test_normalization.py",)
LINEAR = (f"{T}/test_linear.py",)
DROPOUT = (f"{T}/test_dropout.py",)
ACTIVATION = (f"{T}/test_activation.py",)
LOSS = (f"{T}/test_loss.py",)
UNEMBEDDING = (f"{T}/test_unembedding.py",)
ED_ORACLE = (f"{T}/test_transformers.py::test_the_transformers_are_the_oracles[ed-paper]",)
E_ORACLE = (f"{T}/test_transformers.py::test_the_transformers_are_the_oracles[e-paper]",)
D_ORACLE = (f"{T}/test_transformers.py::test_the_transformers_are_the_oracles[d-paper]",)
D_TRAINING = (f"{T}/test_training_algorithms.py::test_d_training_is_the_oracles",)

OF_COMPONENTS: dict[str, Mutation] = {
    # Embeddings: Algorithms 1 and 2
    "token off by one": Mutation(
        "alg01_embedding.py", "e = lookup(W_e, v,", "e = lookup(W_e, v - 1,", 1, "return", EMBEDDING
    ),
    "position off by one": Mutation(
        "alg01_embedding.py", "e_p = lookup(W_p, l,", "e_p = lookup(W_p, l + 1,", 2, "return", EMBEDDING
    ),
    "IDs count from the end": Mutation("ops/lookup.py", "(v >= 0) & (v < n), 1.0", "v < n, 1.0", 1, None, EMBEDDING),
    "IDs wrap": Mutation("ops/lookup.py", "(v >= 0) & (v < n), 1.0", "v >= 0, 1.0", 1, None, EMBEDDING),
    "IDs stay as narrow as they came": Mutation(
        "machinery/arrays.py", "jnp.asarray(x).astype(int)", "jnp.asarray(x)", 1, None, NARROW
    ),
    "sinusoids of the paper from 0": Mutation(
        "alg01_embedding.py", "first = 1 if base is None else 0", "first = 0", 2, None, EMBEDDING
    ),
    "sine and cosine exchanged": Mutation(
        "alg01_embedding.py", "[xp.sin(angle), xp.cos(angle)]", "[xp.cos(angle), xp.sin(angle)]", 2, None, EMBEDDING
    ),
    # Attention: Algorithms 3, 4 and 5
    "bias of the query skipped": Mutation(
        "alg03_attention.py", 'linear(W_q, e, b_q, "', 'linear(W_q, e, 0 * b_q, "', 3, "1", SINGLE_QUERY
    ),
    "1/√d dropped, one query": Mutation(
        "alg03_attention.py", " / jnp.sqrt(q.shape[0]).astype(q.dtype)", "", 3, "4", SINGLE_QUERY
    ),
    "bias of the values skipped": Mutation(
        "alg03_attention.py", "linear(W_v, Z, b_v, imp", "linear(W_v, Z, 0 * b_v, imp", 4, "3", ATTENTION
    ),
    "scores not of keys": Mutation(
        "alg03_attention.py", "jnp.matmul(K.T, Q,", "jnp.matmul(2 * K.T, Q,", 4, "4", ATTENTION
    ),
    "mask of the other polarity": Mutation(
        "alg03_attention.py", "jnp.where(Mask, S, -", "jnp.where(~Mask, S, -", 4, "5", ATTENTION
    ),
    "masked scores 0, not −∞": Mutation(
        "alg03_attention.py", "jnp.where(Mask, S, -jnp.inf)", "jnp.where(Mask, S, 0)", 4, "5", ATTENTION
    ),
    "1/√d dropped": Mutation(
        "alg03_attention.py", "softmax(S / jnp.sqrt(Q.shape[0]).astype(S.dtype))", "softmax(S)", 4, "return", ATTENTION
    ),
    "attention weights ignored": Mutation(
        "alg03_attention.py", "(V @ drop(A))", "(V @ jnp.full_like(A, 1 / A.shape[0]))", 4, "return", ATTENTION
    ),
    "columns of −∞ are 0/0": Mutation(
        "ops/softmax.py",
        "return numerator / jnp.where(denominator == 0, 1, denominator)",
        "return numerator / denominator",
        4,
        "return",
        ATTENTION,
    ),
    "softmax over the wrong axis": Mutation(
        "ops/softmax.py",
        "numerator.sum(axis=0, keepdims=True)",
        "numerator.sum(axis=-1, keepdims=True)",
        4,
        "return",
        UNEMBEDDING,
    ),
    "1/√d dropped, dense": Mutation(
        "ops/attention/dense.py", "scale = Q.shape[0] ** -0.5\n    S =", "scale = 1.0\n    S =", 4, None, DENSE
    ),
    "mask ignored, dense": Mutation(
        "ops/attention/dense.py", "softmax(jnp.where(Mask, S, -jnp.inf))", "softmax(S)", 4, None, DENSE
    ),
    "softmax Jacobian without aᵀg": Mutation(
        "ops/softmax.py", "return A * (g - (A * g).sum(axis=0, keepdims=True))", "return A * g", 4, None, DENSE_BACKWARD
    ),
    "1/√d dropped, blockwise": Mutation(
        "ops/attention/blockwise.py",
        "Q = blocks.padded(Q * jnp.asarray(Q.shape[0] ** -0.5, Q.dtype), primary=True)",
        "Q = blocks.padded(Q, primary=True)",
        4,
        None,
        BLOCKWISE,
    ),
    "mask ignored, blockwise": Mutation(
        "ops/attention/blockwise.py", "S = jnp.where(blocks.permitted(j, i), S, -jnp.inf)", "S = +S", 4, None, BLOCKWISE
    ),
    "sum not rescaled": Mutation(
        "ops/attention/blockwise.py", "s = s * rescale + weights", "s = s + weights", 4, None, (*BLOCKWISE, *BACKWARD)
    ),
    "last block of the context not visited": Mutation(
        "ops/attention/blockwise.py",
        "(i + 1) * self.b_x - 1) // self.b_z + 1",
        "(i + 1) * self.b_x - 1) // self.b_z",
        4,
        None,
        BACKWARD,
    ),
    "δ dropped": Mutation(
        "ops/attention/blockwise.py", "product(V_j.T, E_i) * D - delta_i", "product(V_j.T, E_i) * D", 4, None, BACKWARD
    ),
    "too few blocks of a band visited": Mutation(
        "ops/attention/blockwise.py",
        "-(-(tokens - 1) // self.b_z) + 1",
        "-(-(tokens - 1) // self.b_z)",
        4,
        None,
        BACKWARD,
    ),
    "last tile left out": Mutation(
        "ops/attention/tiles.py", "return put(whole * n, out, H * B % n)", "return out", 4, None, TILES
    ),
    "platform of the process, not of the program": Mutation(
        "machinery/platform.py",
        "    for mesh in (jax.typeof(X)",
        "    return jax.default_backend()\n    for mesh in (jax.typeof(X)",
        4,
        None,
        PLATFORM,
    ),
    "batch axes exchanged": Mutation(
        "ops/attention/dispatch.py",
        "sequence_axes(mask), for_seeds), out_axes=1)",
        "sequence_axes(mask), for_seeds), out_axes=-2)",
        4,
        None,
        BATCHES,
    ),
    "each sequence has the mask of another": Mutation(
        "ops/attention/dispatch.py",
        "a.reshape(-1, *a.shape[n:]) if n else a",
        "a.reshape(-1, *a.shape[n:])[::-1] if n else a",
        4,
        None,
        MASKS_OF_EACH,
    ),
    "dropped weights not made up for": Mutation(
        "ops/attention/dispatch.py", "A / (1 - dropout), 0)", "A, 0)", 4, None, ATTENTION_DROPOUT
    ),
    "heads drop the same weights": Mutation(
        "ops/attention/dispatch.py",
        "(fold_in, key))(jnp.arange(H))",
        "(fold_in, key))(0 * jnp.arange(H))",
        5,
        None,
        ATTENTION_DROPOUT,
    ),
    "heads in the wrong order": Mutation(
        "alg03_attention.py", "Y = jnp.concatenate(Y)", "Y = jnp.concatenate(Y[::-1])", 5, "3", HEADS
    ),
    "bias of the output skipped": Mutation(
        "alg03_attention.py", "linear(W.W_o, Y, W.b_o,", "linear(W.W_o, Y, 0 * W.b_o,", 5, "return", HEADS
    ),
    # Masks
    "mask transposed": Mutation("masks.py", "permitted &= t_z <= t_x", "permitted &= t_x <= t_z", 4, "5", MASKS),
    "mask without the token itself": Mutation(
        "masks.py", "permitted &= t_z <= t_x", "permitted &= t_z < t_x", 4, "5", MASKS
    ),
    "band too wide": Mutation("masks.py", "t_x - self.width < t_z", "t_x - self.width <= t_z", 4, None, MASKS),
    "padding attended": Mutation("masks.py", "t_z < self.length", "t_z <= self.length", 4, None, MASKS),
    "conjunction of the longer": Mutation(
        "masks.py", "other.length, jnp.minimum)", "other.length, jnp.maximum)", 4, None, MASKS
    ),
    "conjunction of one": Mutation(
        "masks.py",
        "self.unidirectional or other.unidirectional",
        "self.unidirectional and other.unidirectional",
        4,
        None,
        MASKS,
    ),
    "documents attend the others": Mutation(
        "masks.py", "self.documents_z[t_z] == self", "self.documents_z[t_z] != self", 4, None, MASKS
    ),
    # Layer norm, activations, affine maps and dropout: Algorithm 6, and what the layers are made of
    "mean not subtracted": Mutation(
        "alg06_layer_norm.py", "e_hat = (e - m) / jnp.sqrt(v", "e_hat = e / jnp.sqrt(v", 6, "return", NORMS
    ),
    "ε misplaced": Mutation(
        "alg06_layer_norm.py",
        "(e - m) / jnp.sqrt(v + epsilon)",
        "(e - m) / (jnp.sqrt(v) + epsilon)",
        6,
        "return",
        NORMS,
    ),
    "variance unbiased": Mutation(
        "alg06_layer_norm.py",
        "v = jnp.square(e - m).mean(axis=0, keepdims=True)",
        "v = e.var(axis=0, ddof=1, keepdims=True)",
        6,
        "2",
        NORMS,
    ),
    "β skipped": Mutation(
        "alg06_layer_norm.py", "as_columns(gamma, e) + as_columns(beta, e)", "as_columns(gamma, e)", 6, "return", NORMS
    ),
    "layer norm over tokens": Mutation(
        "alg06_layer_norm.py",
        "m = e.mean(axis=0, keepdims=True)",
        "m = e.mean(axis=-1, keepdims=True)",
        8,
        "6",
        ED_ORACLE,
    ),
    "mean of RMSnorm": Mutation(
        "alg06_layer_norm.py",
        "e_hat = e / jnp.sqrt(v + epsilon) *",
        "e_hat = (e - e.mean()) / jnp.sqrt(v + epsilon) *",
        6,
        None,
        NORMS,
    ),
    "β skipped, by hand": Mutation(
        "ops/normalization.py",
        "as_columns(gamma, X) + as_columns(beta, X)",
        "as_columns(gamma, X)",
        6,
        None,
        POSITION_WISE,
    ),
    "no derivative through the variance": Mutation(
        "ops/normalization.py", " - x_hat * (g * x_hat).mean(axis=0, keepdims=True))", ")", 13, None, POSITION_WISE
    ),
    "GELU approximated": Mutation("ops/activation.py", '"gelu": (gelu,', '"gelu": (gelu_tanh,', 9, "7", E_ORACLE),
    "ReLU for GELU": Mutation("ops/activation.py", '"gelu": (gelu,', '"gelu": (relu,', 9, "7", D_ORACLE),
    "GELU for ReLU": Mutation("ops/activation.py", '"relu": (relu,', '"relu": (gelu,', 8, "7", ED_ORACLE),
    "gradient of the bias skipped": Mutation(
        "ops/linear.py",
        "db = dY.sum(axis=columns_of_Y, dtype=dtype)",
        "db = 0 * dY.sum(axis=columns_of_Y, dtype=dtype)",
        13,
        None,
        (*LINEAR, *D_TRAINING),
    ),
    "groups of rows in another order": Mutation(
        "ops/linear.py",
        "W.reshape(groups, -1, W.shape[-1])",
        "W.reshape(groups, -1, W.shape[-1])[::-1]",
        4,
        None,
        LINEAR,
    ),
    "all columns drop the same": Mutation(
        "ops/dropout.py", " ^ word_of_column[None, :]", " ^ 0 * word_of_column", 10, None, DROPOUT
    ),
    "dropped activations not made up for": Mutation("ops/dropout.py", "X / (1 - rate), 0)", "X, 0)", 10, None, DROPOUT),
    # What only a chunk, a block or a tail shows: each caught by the tests of its own file
    "a token's last place alone": Mutation(
        "ops/lookup.py", ".at[v].add(dE.T)", ".at[v].set(dE.T)", 1, None, (f"{T}/test_lookup.py",)
    ),
    "a band begins a block too late": Mutation(
        "ops/attention/blockwise.py",
        "i * self.b_x - mask.width + 1, 0)",
        "i * self.b_x - mask.width + 2, 0)",
        4,
        None,
        (f"{T}/test_blockwise.py",),
    ),
    "GELU's derivative without the density": Mutation(
        "ops/activation.py", "return _normal_cdf(x) + x * phi", "return _normal_cdf(x) + phi", 9, None, ACTIVATION
    ),
    "GELU by erf": Mutation(
        "ops/activation.py",
        "jax.lax.erfc(-x * math.sqrt(1 / 2)) / 2",
        "(1 + jax.lax.erf(x * math.sqrt(1 / 2))) / 2",
        9,
        None,
        ACTIVATION,
    ),
    "rows of an overlap counted twice": Mutation(
        "ops/chunked_log_loss.py", "jnp.where(is_new, dY, 0)", "jnp.where(True, dY, 0)", 13, None, LOSS
    ),
    "smoothing over the padding, too": Mutation(
        "ops/chunked_log_loss.py", "of_target + s / N_V *", "of_target + s / Y.shape[0] *", 13, None, LOSS
    ),
    "smoothing over the padding, too, in the gradient": Mutation(
        "ops/chunked_log_loss.py", "q + label_smoothing / N_V *", "q + label_smoothing / n *", 13, None, LOSS
    ),
}
"""What was changed → the edit."""
