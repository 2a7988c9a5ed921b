"""The wrong edits of `algorithms/`, in one table: what each test must catch, and what the cross-check must locate."""

import dataclasses

__all__ = ["MUTATIONS", "Mutation"]


@dataclasses.dataclass(frozen=True)
class Mutation:
    """A wrong edit.

    Attributes:
        file: the file of `algorithms/` that it is made in.
        old: text that stands there once.
        new: what is put in its place.
        algorithm: the algorithm that it spoils first.
        line: the line of it that the cross-check must name; None where the paper's lines, run as printed on valid input in
            float64, compute the same as before.
        tests: what must catch it, as pytest names it: one of these must fail.
    """

    file: str
    old: str
    new: str
    algorithm: int
    line: str | None
    tests: tuple[str, ...]


T = "tests/algorithms"
EMBEDDING = (f"{T}/test_embedding.py",)
NARROW = (f"{T}/test_narrow_types.py",)
SINGLE_QUERY = (f"{T}/test_attention.py::test_single_query_attention_is_the_oracles",)
ATTENTION = (f"{T}/test_attention.py",)
ATTENTION_DROPOUT = (f"{T}/test_attention.py::TestDropout",)
HEADS = (f"{T}/test_attention.py::test_mh_attention_is_the_oracles",)
DENSE = (f"{T}/test_attention.py::test_a_structural_mask_is_what_it_says[dense]",)
DENSE_BACKWARD = (f"{T}/test_backward.py::test_attention[dense-none]",)
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
UNEMBEDDING = (f"{T}/test_unembedding.py",)
ED_ORACLE = (f"{T}/test_transformers.py::test_the_transformers_are_the_oracles[ed-paper]",)
E_ORACLE = (f"{T}/test_transformers.py::test_the_transformers_are_the_oracles[e-paper]",)
D_ORACLE = (f"{T}/test_transformers.py::test_the_transformers_are_the_oracles[d-paper]",)
PADDING = (f"{T}/test_transformers.py::test_padding_of_the_sequence_is_not_there",)
PACKED = (f"{T}/test_transformers.py::test_packed_documents_are_as_each_by_itself",)
VARIANTS = (f"{T}/test_variants.py",)
LAYER_KEYS = (f"{T}/test_layers.py",)
SHARD_MAP = (f"{T}/test_shard_map.py",)
ED_TRAINING = (f"{T}/test_training_algorithms.py::test_ed_training_is_the_oracles",)
E_TRAINING = (f"{T}/test_training_algorithms.py::test_e_training_is_the_oracles_with_the_masks_of_its_keys",)
D_TRAINING = (f"{T}/test_training_algorithms.py::test_d_training_is_the_oracles",)
LOSS = (f"{T}/test_loss.py",)
INVALID_TARGETS = (f"{T}/test_narrow_types.py::test_a_target_outside_of_the_vocabulary_is_nan_in_value_and_gradient",)
LENGTHS = (f"{T}/test_narrow_types.py::test_a_length_beyond_the_sequence_is_refused",)
INFERENCE = (f"{T}/test_inference.py",)
HALF_PRECISION = (f"{T}/test_narrow_types.py::test_what_is_drawn_in_half_precision_follows_its_distribution",)
INITIALIZATION = (f"{T}/test_initialization.py",)

MUTATIONS: dict[str, Mutation] = {
    # Embeddings: Algorithms 1 and 2
    "token off by one": Mutation(
        "embedding.py", "e = lookup(W_e, v,", "e = lookup(W_e, v - 1,", 1, "return", EMBEDDING
    ),
    "position off by one": Mutation(
        "embedding.py", "e_p = lookup(W_p, l,", "e_p = lookup(W_p, l + 1,", 2, "return", EMBEDDING
    ),
    "IDs count from the end": Mutation(
        "ops/lookup.py", "(v >= 0) & (v < n), 1, jnp.nan", "v < n, 1, jnp.nan", 1, None, EMBEDDING
    ),
    "IDs wrap": Mutation("ops/lookup.py", "(v >= 0) & (v < n), 1, jnp.nan", "v >= 0, 1, jnp.nan", 1, None, EMBEDDING),
    "IDs stay as narrow as they came": Mutation(
        "notation.py", "jnp.asarray(x).astype(int)", "jnp.asarray(x)", 1, None, NARROW
    ),
    "sinusoids of the paper from 0": Mutation(
        "embedding.py", "first = 1 if base is None else 0", "first = 0", 2, None, EMBEDDING
    ),
    "sine and cosine exchanged": Mutation(
        "embedding.py", "[xp.sin(angle), xp.cos(angle)]", "[xp.cos(angle), xp.sin(angle)]", 2, None, EMBEDDING
    ),
    # Attention: Algorithms 3, 4 and 5
    "bias of the query skipped": Mutation(
        "attention.py", 'linear(W_q, e, b_q, "', 'linear(W_q, e, 0 * b_q, "', 3, "1", SINGLE_QUERY
    ),
    "1/√d dropped, one query": Mutation(
        "attention.py", " / jnp.sqrt(q.shape[0]).astype(q.dtype)", "", 3, "4", SINGLE_QUERY
    ),
    "bias of the values skipped": Mutation(
        "attention.py", "linear(W_v, Z, b_v, imp", "linear(W_v, Z, 0 * b_v, imp", 4, "3", ATTENTION
    ),
    "scores not of keys": Mutation("attention.py", "jnp.matmul(K.T, Q,", "jnp.matmul(2 * K.T, Q,", 4, "4", ATTENTION),
    "mask of the other polarity": Mutation(
        "attention.py", "jnp.where(Mask, S, -", "jnp.where(~Mask, S, -", 4, "5", ATTENTION
    ),
    "masked scores 0, not −∞": Mutation(
        "attention.py", "jnp.where(Mask, S, -jnp.inf)", "jnp.where(Mask, S, 0)", 4, "5", ATTENTION
    ),
    "1/√d dropped": Mutation(
        "attention.py", "softmax(S / jnp.sqrt(Q.shape[0]).astype(S.dtype))", "softmax(S)", 4, "return", ATTENTION
    ),
    "attention weights ignored": Mutation(
        "attention.py", "(V @ drop(A))", "(V @ jnp.full_like(A, 1 / A.shape[0]))", 4, "return", ATTENTION
    ),
    "columns of −∞ are 0/0": Mutation(
        "ops/softmax.py", "jnp.where(denominator == 0, 1, denominator)", "denominator", 4, "return", ATTENTION
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
        "((i + 1) * self.b_x - 1) // self.b_z + 1",
        "((i + 1) * self.b_x - 1) // self.b_z",
        4,
        None,
        BLOCKWISE,
    ),
    "δ dropped": Mutation(
        "ops/attention/blockwise.py", "product(V_j.T, E_i) * D - delta_i", "product(V_j.T, E_i) * D", 4, None, BACKWARD
    ),
    "last tile left out": Mutation(
        "ops/attention/per_head.py", "return put(whole * n, out, H * B % n)", "return out", 4, None, TILES
    ),
    "platform of the process, not of the program": Mutation(
        "ops/attention/choice.py",
        "    for mesh in (jax.typeof(X)",
        "    return jax.default_backend()\n    for mesh in (jax.typeof(X)",
        4,
        None,
        PLATFORM,
    ),
    "batch axes exchanged": Mutation(
        "ops/attention/choice.py",
        "sequence_axes(mask), for_seeds), out_axes=1)",
        "sequence_axes(mask), for_seeds), out_axes=-2)",
        4,
        None,
        BATCHES,
    ),
    "each sequence has the mask of another": Mutation(
        "ops/attention/choice.py",
        "a.reshape(-1, *a.shape[n:]) if n else a",
        "a.reshape(-1, *a.shape[n:])[::-1] if n else a",
        4,
        None,
        MASKS_OF_EACH,
    ),
    "dropped weights not made up for": Mutation(
        "ops/attention/choice.py", "A / (1 - dropout), 0)", "A, 0)", 4, None, ATTENTION_DROPOUT
    ),
    "heads drop the same weights": Mutation(
        "ops/attention/choice.py",
        "(fold_in, key))(jnp.arange(H))",
        "(fold_in, key))(0 * jnp.arange(H))",
        5,
        None,
        ATTENTION_DROPOUT,
    ),
    "heads in the wrong order": Mutation(
        "attention.py", "Y = jnp.concatenate(Y)", "Y = jnp.concatenate(Y[::-1])", 5, "3", HEADS
    ),
    "bias of the output skipped": Mutation(
        "attention.py", "linear(W.W_o, Y, W.b_o,", "linear(W.W_o, Y, 0 * W.b_o,", 5, "return", HEADS
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
        "layer_norm.py", "e_hat = (e - m) / jnp.sqrt(v", "e_hat = e / jnp.sqrt(v", 6, "return", NORMS
    ),
    "ε misplaced": Mutation(
        "layer_norm.py", "(e - m) / jnp.sqrt(v + epsilon)", "(e - m) / (jnp.sqrt(v) + epsilon)", 6, "return", NORMS
    ),
    "variance unbiased": Mutation(
        "layer_norm.py",
        "v = jnp.square(e - m).mean(axis=0, keepdims=True)",
        "v = e.var(axis=0, ddof=1, keepdims=True)",
        6,
        "2",
        NORMS,
    ),
    "β skipped": Mutation(
        "layer_norm.py", "as_columns(gamma, e) + as_columns(beta, e)", "as_columns(gamma, e)", 6, "return", NORMS
    ),
    "layer norm over tokens": Mutation(
        "layer_norm.py", "m = e.mean(axis=0, keepdims=True)", "m = e.mean(axis=-1, keepdims=True)", 8, "6", NORMS
    ),
    "mean of RMSnorm": Mutation(
        "layer_norm.py",
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
        "db = dY_2.sum(axis=1, dtype=dtype)",
        "db = 0 * dY_2.sum(axis=1, dtype=dtype)",
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
    # Transformers: Algorithms 7 to 10
    "logits not of W_u": Mutation(
        "unembedding.py", "softmax(logits(e, W_u, b_u))", "softmax(logits(e, -W_u, b_u))", 7, "1", UNEMBEDDING
    ),
    "tied although W_u is given": Mutation(
        "unembedding.py", "theta.W_e.T if theta.W_u is None else theta.W_u", "theta.W_e.T", 8, "return", D_ORACLE
    ),
    "positions from 1": Mutation(
        "layers.py", "t = _positions_in(x) if positions", "t = 1 + _positions_in(x) if positions", 8, "2", ED_ORACLE
    ),
    "layers reversed": Mutation(
        "layers.py",
        "turn, X, (stacked, jnp.arange(L)))",
        "turn, X, (stacked, jnp.arange(L)), reverse=True)",
        8,
        "5",
        ED_ORACLE,
    ),
    "encoder unidirectional": Mutation(
        "ed_transformer.py", "(Z, Z, W_enc, mask,", "(Z, Z, W_enc, UNIDIRECTIONAL,", 8, "5", ED_ORACLE
    ),
    "decoder bidirectional": Mutation(
        "ed_transformer.py", "W_dec, UNIDIRECTIONAL,", "W_dec, mask,", 8, "14", ED_ORACLE
    ),
    "cross weights shared": Mutation("ed_transformer.py", "(X, Z, W_ed,", "(X, Z, W_dec,", 8, "16", ED_ORACLE),
    "cross-attention of X": Mutation("ed_transformer.py", "(X, Z, W_ed,", "(X, X, W_ed,", 8, "16", ED_ORACLE),
    "norm 4 for norm 5": Mutation(
        "ed_transformer.py", "f.layer_norm(X, *norm5)", "f.layer_norm(X, *norm4)", 8, "19", ED_ORACLE
    ),
    "no residual": Mutation("e_transformer.py", "X = X + f.mlp(X,", "X = f.mlp(X,", 9, "7", E_ORACLE),
    "bias of W_f skipped": Mutation(
        "e_transformer.py", "linear(theta.W_f, X, theta.b_f", "linear(theta.W_f, X, 0 * theta.b_f", 9, "10", E_ORACLE
    ),
    "residual of the normalized X": Mutation(
        "d_transformer.py", "X = X + f.mh_attention(", "X = X_tilde + f.mh_attention(", 10, "6", D_ORACLE
    ),
    "MLP of the residual stream": Mutation("d_transformer.py", "f.mlp(X_tilde,", "f.mlp(X,", 10, "8", D_ORACLE),
    "no final norm": Mutation("d_transformer.py", "X = f.layer_norm(X, *theta.norm)", "X = +X", 10, "10", D_ORACLE),
    "first layer twice": Mutation(
        "d_transformer.py",
        "for_each_layer(d_layer, X, theta.layers,",
        'for_each_layer(d_layer, X, __import__("jax").tree.map(lambda a: a.at[1].set(a[0]), theta.layers),',
        10,
        "5",
        D_ORACLE,
    ),
    "padding read": Mutation(
        "layers.py",
        "jnp.where(_positions_in(x) < length, x, 0)",
        "jnp.where(_positions_in(x) < length, x, x)",
        9,
        None,
        PADDING,
    ),
    "padding of the sequence attended": Mutation(
        "e_transformer.py", "mask = StructuralMask(length=length)", "mask = StructuralMask()", 12, "8", PADDING
    ),
    "output bias skipped": Mutation(
        "e_transformer.py", "unembedding_matrix(theta), b_u=theta.b_u)", "unembedding_matrix(theta))", 9, None, VARIANTS
    ),
    "embedding not scaled": Mutation(
        "layers.py", "if self.variant.scale_embedding else E", "if False else E", 8, None, VARIANTS
    ),
    "packed documents attend each other": Mutation(
        "d_transformer.py", "UNIDIRECTIONAL & documents(segments)", "UNIDIRECTIONAL", 10, None, PACKED
    ),
    "one key for all layers": Mutation(
        "layers.py", "fold_in(key, draws * l + i)", "fold_in(key, i)", 10, None, LAYER_KEYS
    ),
    "inputs of a rule vary differently": Mutation(
        "machinery/hand_derived.py",
        "return jax.tree.map(cast, tree) if axes else tree",
        "return tree",
        4,
        None,
        SHARD_MAP,
    ),
    # Training: Algorithms 11 to 13
    "target off by one": Mutation(
        "training.py",
        "z_length=l_z\n    )\n    weights = (t < l - 1).astype(X.dtype)\n    loss = log_loss(\n        X, unembedding_matrix(theta), jnp.roll(x, -1)",
        "z_length=l_z\n    )\n    weights = (t < l - 1).astype(X.dtype)\n    loss = log_loss(\n        X, unembedding_matrix(theta), x",
        11,
        "5",
        ED_TRAINING,
    ),
    "uphill": Mutation(
        "training.py",
        "g = jax.grad(ed_loss)(theta, *data, variant=variant, implementation=implementation)  # line 6: ∇loss\n        theta = jax.tree.map(lambda theta, g: theta -",
        "g = jax.grad(ed_loss)(theta, *data, variant=variant, implementation=implementation)  # line 6: ∇loss\n        theta = jax.tree.map(lambda theta, g: theta +",
        11,
        "6",
        ED_TRAINING,
    ),
    "padding of the sequence poisons": Mutation(
        "training.py",
        "x = jnp.where(t < l, as_ids(x), 0)\n    X = ed_hidden_state(",
        "x = as_ids(x)\n    X = ed_hidden_state(",
        11,
        None,
        ED_TRAINING,
    ),
    "weights of the loss ignored": Mutation(
        "ops/log_loss.py", "return (weights * token", "return (1 * token", 11, "5", LOSS
    ),
    "what is masked and what is not": Mutation(
        "training.py", "x.shape), mask_token, as_ids(x))", "x.shape), as_ids(x), mask_token)", 12, "5", E_TRAINING
    ),
    "mask_token is another": Mutation("notation.py", "return N_V - 3", "return N_V - 4", 12, "5", E_TRAINING),
    "the same masks for all sequences": Mutation(
        "training.py",
        "jax.random.fold_in(jax.random.fold_in(key, i), n)",
        "jax.random.fold_in(key, i)",
        12,
        "5",
        E_TRAINING,
    ),
    "the same masks in all epochs": Mutation(
        "training.py",
        "jax.random.fold_in(jax.random.fold_in(key, i), n)",
        "jax.random.fold_in(key, n)",
        12,
        "5",
        E_TRAINING,
    ),
    "padding masked": Mutation(
        "training.py",
        "(x_tilde == mask_token(theta.W_e.shape[1])) & (t < l)",
        "(x_tilde == mask_token(theta.W_e.shape[1]))",
        12,
        "7",
        E_TRAINING,
    ),
    "target already masked": Mutation(
        "training.py",
        "unembedding_matrix(theta), x, weights",
        "unembedding_matrix(theta), x_tilde, weights",
        12,
        "9",
        E_TRAINING,
    ),
    "padding in the loss": Mutation(
        "training.py",
        "X = d_hidden_state(x, theta, variant=variant, implementation=implementation)  # line 4, up to the softmax\n    weights = (t < l - 1)",
        "X = d_hidden_state(x, theta, variant=variant, implementation=implementation)  # line 4, up to the softmax\n    weights = (t < l)",
        13,
        "5",
        D_TRAINING,
    ),
    "target not in the gradient": Mutation(
        "ops/log_loss.py", "(P - q) * dlosses[None])", "P * dlosses[None])", 13, None, LOSS
    ),
    "smoothing dropped": Mutation(
        "ops/log_loss.py", "of_target + label_smoothing * Y.mean(axis=0)", "of_target", 13, None, LOSS
    ),
    "columns of weight 0 take part": Mutation(
        "ops/log_loss.py",
        "X, targets = jnp.where(weights[None] == 0, 0, X), jnp.where(weights == 0, 0, as_ids(targets))",
        "X, targets = X, as_ids(targets)",
        13,
        None,
        LOSS,
    ),
    "a target outside of the vocabulary is the nearest": Mutation(
        "ops/log_loss.py",
        "jnp.where((targets >= 0) & (targets < n), 1, jnp.nan)",
        "jnp.where((targets >= 0) & (targets < n), 1, 1)",
        13,
        None,
        LOSS,
    ),
    "a target outside of the vocabulary sends a gradient": Mutation(
        "ops/log_loss.py", "dlosses, dlosses * jnp.nan)", "dlosses, dlosses)", 13, None, INVALID_TARGETS
    ),
    "columns of a batch and their targets in another order": Mutation(
        "ops/log_loss.py",
        "X.reshape(X.shape[0], -1), W_u, b_u,",
        "X.swapaxes(1, -1).reshape(X.shape[0], -1), W_u, b_u,",
        13,
        None,
        BATCHES,
    ),
    "lengths of JAX not checked": Mutation(
        "machinery/contract.py",
        "if l and isinstance(l[0], int) and",
        "if l and isinstance(l[0], int) and not isinstance(value, Array) and",
        13,
        None,
        LENGTHS,
    ),
    # Inference: Algorithms 14 and 15
    "column off by one": Mutation("inference.py", "p = P[..., l + i - 1]", "p = P[..., l + i - 2]", 14, "4", INFERENCE),
    "temperature inverted": Mutation(
        "inference.py",
        "exponent = 1 / jnp.where(tau == 0, 1, tau)",
        "exponent = jnp.where(tau == 0, 1, tau)",
        14,
        "5",
        INFERENCE,
    ),
    "one key for all tokens": Mutation(
        "inference.py", "sample(p, tau, fold_in(key, i))", "sample(p, tau, fold_in(key, 0))", 14, "5", INFERENCE
    ),
    "greedy ignored": Mutation(
        "inference.py", "jnp.where(tau == 0, jnp.argmax(p),", "jnp.where(tau < 0, jnp.argmax(p),", 14, "5", INFERENCE
    ),
    "τ = ∞ not uniform": Mutation(
        "inference.py",
        "jnp.where(exponent == 0, 0, jnp.log(p)",
        "jnp.where(exponent < 0, 0, -jnp.log(p)",
        14,
        "5",
        INFERENCE,
    ),
    "drawn in the dtype of the parameters": Mutation(
        "inference.py", "draw(p.astype(accumulation_dtype(p.dtype)), key)", "draw(p, key)", 14, None, HALF_PRECISION
    ),
    "prompt in the result": Mutation(
        "inference.py", "y = x[..., l:].astype", "y = x[..., l - 1 : -1].astype", 14, "return", INFERENCE
    ),
    "no bos_token": Mutation(
        "inference.py", ".at[..., 0].set(bos_token(N_V))", ".at[..., 0].set(0)", 15, "1", INFERENCE
    ),
    "padded with another token": Mutation(
        "inference.py",
        "jnp.full((*batch, l_max), eos_token(N_V), jnp.int32)",
        "jnp.full((*batch, l_max), 0, jnp.int32)",
        15,
        None,
        INFERENCE,
    ),
    "eos_token is another": Mutation("notation.py", "return N_V - 1", "return N_V - 3", 15, "3", INFERENCE),
    "stops early": Mutation("inference.py", "& (i < l_max)", "& (i < l_max - 1)", 15, "3", INFERENCE),
    "column of the step before": Mutation("inference.py", "p = P[..., i - 1]", "p = P[..., i - 2]", 15, "5", INFERENCE),
    "one key for all draws": Mutation("inference.py", "fold_in(key, i - 1)", "fold_in(key, 0)", 15, "6", INFERENCE),
    "token written too late": Mutation(
        "inference.py", "x_hat.at[..., i].set(y)", "x_hat.at[..., i + 1].set(y)", 15, "7", INFERENCE
    ),
    # Initial parameters
    "one key for all matrices": Mutation(
        "model/initialization.py", "self._drawn += 1", "self._drawn += 0", 10, None, INITIALIZATION
    ),
    "Glorot by columns only": Mutation(
        "model/initialization.py", "(6 / (shape[-2] + shape[-1]))", "(6 / shape[-1])", 10, None, INITIALIZATION
    ),
    "residual writes not scaled": Mutation(
        "model/initialization.py",
        "deviation=0.02 / self._residual_writes**0.5",
        "deviation=0.02",
        10,
        None,
        INITIALIZATION,
    ),
}
"""What was changed → the edit, in the order of the paper; at least one for every algorithm."""
