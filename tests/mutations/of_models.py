"""Wrong edits of Algorithms 7 to 13."""

from .mutation import Mutation

__all__ = ["OF_MODELS"]

T = "tests/algorithms"
BATCHES = (f"{T}/test_batch_axes.py",)
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

OF_MODELS: dict[str, Mutation] = {
    # Transformers: Algorithms 7 to 10
    "logits not of W_u": Mutation(
        "algorithms/alg07_unembedding.py",
        "unembedding",
        "1",
        "logits(e, W_u, b_u)",
        "logits(e, -W_u, b_u)",
        7,
        "1",
        UNEMBEDDING,
    ),
    "tied although W_u is given": Mutation(
        "algorithms/model/unembedding.py",
        "Unembedding.matrix",
        "return",
        "theta.W_u",
        "theta.W_e.T",
        8,
        "return",
        D_ORACLE,
    ),
    "positions from 1": Mutation(
        "algorithms/model/embedding.py",
        "Embedding.of_positions",
        "t",
        "self.first_position + t",
        "1 + t",
        8,
        "2",
        ED_ORACLE,
    ),
    "layers reversed": Mutation(
        "algorithms/layers.py",
        "Lines.each_layer",
        "X",
        "remat), X, (stacked, jnp.arange(L)))",
        "remat), X, (stacked, jnp.arange(L)), reverse=True)",
        8,
        "5",
        ED_ORACLE,
    ),
    "encoder unidirectional": Mutation(
        "algorithms/alg08_ed_transformer.py",
        "ed_encoding.layer",
        "5",
        "W_enc, mask",
        "W_enc, UNIDIRECTIONAL",
        8,
        "5",
        ED_ORACLE,
    ),
    "decoder bidirectional": Mutation(
        "algorithms/alg08_ed_transformer.py",
        "decoder_hidden_state.layer",
        "14",
        "W_dec, mask",
        "W_dec, BIDIRECTIONAL",
        8,
        "14",
        ED_ORACLE,
    ),
    "cross weights shared": Mutation(
        "algorithms/alg08_ed_transformer.py",
        "decoder_hidden_state.layer",
        "16",
        "Z, W_ed",
        "Z, W_dec",
        8,
        "16",
        ED_ORACLE,
    ),
    "cross-attention of X": Mutation(
        "algorithms/alg08_ed_transformer.py",
        "decoder_hidden_state.layer",
        "16",
        "Z, W_ed",
        "X, W_ed",
        8,
        "16",
        ED_ORACLE,
    ),
    "norm 4 for norm 5": Mutation(
        "algorithms/alg08_ed_transformer.py", "decoder_hidden_state.layer", "19", "norm5", "norm4", 8, "19", ED_ORACLE
    ),
    "no residual": Mutation(
        "algorithms/alg09_e_transformer.py", "e_encoding.layer", "7", "X + f.mlp", "f.mlp", 9, "7", E_ORACLE
    ),
    "bias of W_f skipped": Mutation(
        "algorithms/alg09_e_transformer.py",
        "e_hidden_state",
        "10",
        "linear(theta.W_f, X, theta.b_f",
        "linear(theta.W_f, X, 0 * theta.b_f",
        9,
        "10",
        E_ORACLE,
    ),
    "residual of the normalized X": Mutation(
        "algorithms/alg10_d_transformer.py",
        "hidden_state.layer",
        "6",
        "X = X + f.mh_attention(",
        "X = X_tilde + f.mh_attention(",
        10,
        "6",
        D_ORACLE,
    ),
    "MLP of the residual stream": Mutation(
        "algorithms/alg10_d_transformer.py", "hidden_state.layer", "8", "f.mlp(X_tilde,", "f.mlp(X,", 10, "8", D_ORACLE
    ),
    "no final norm": Mutation(
        "algorithms/alg10_d_transformer.py",
        "hidden_state",
        "10",
        "f.layer_norm(X, theta.norm)",
        "+X",
        10,
        "10",
        D_ORACLE,
    ),
    "first layer twice": Mutation(
        "algorithms/alg10_d_transformer.py",
        "hidden_state",
        "4",
        "theta.layers",
        '__import__("jax").tree.map(lambda a: a.at[1].set(a[0]), theta.layers)',
        10,
        "5",
        D_ORACLE,
    ),
    "padding read": Mutation(
        "algorithms/layers.py",
        "zero_padding",
        "return",
        "x, 0",
        "x, x",
        9,
        None,
        PADDING,
    ),
    "padding of the sequence attended": Mutation(
        "algorithms/alg09_e_transformer.py", "e_encoding", "mask", "padded(mask, length)", "mask", 12, "8", PADDING
    ),
    "output bias skipped": Mutation(
        "algorithms/model/unembedding.py",
        "Unembedding.__call__",
        "return",
        "b_u=theta.b_u",
        "b_u=None",
        9,
        None,
        VARIANTS,
    ),
    "embedding not scaled": Mutation(
        "algorithms/model/embedding.py", "Embedding.tokens", "return", "if self.scaled", "if False", 8, None, VARIANTS
    ),
    "packed documents attend each other": Mutation(
        "algorithms/alg10_d_transformer.py",
        "d_hidden_state",
        "mask",
        "mask & documents(segments)",
        "mask",
        10,
        None,
        PACKED,
    ),
    "one key for all layers": Mutation(
        "algorithms/layers.py", "Lines.each_layer.turn", "keys", "draws * l + i", "i", 10, None, LAYER_KEYS
    ),
    "inputs of a rule vary differently": Mutation(
        "algorithms/machinery/varying.py",
        "match_varying_axes",
        "return",
        "return jax.tree.map(cast, tree) if axes else tree",
        "return tree",
        4,
        None,
        SHARD_MAP,
    ),
    # Training: Algorithms 11 to 13
    "target off by one": Mutation(
        "algorithms/alg11_training.py",
        "ed_training.theta_hat.theta_i.loss",
        "5",
        "jnp.roll(x_n, -1)",
        "x_n",
        11,
        "5",
        ED_TRAINING,
    ),
    "uphill": Mutation(
        "algorithms/alg11_training.py",
        "ed_training.theta_hat.theta_i",
        "6",
        "theta - (eta",
        "theta + (eta",
        11,
        "6",
        ED_TRAINING,
    ),
    "padding of the sequence poisons": Mutation(
        "algorithms/alg11_training.py",
        "ed_training.theta_hat.theta_i",
        "x_n",
        "jnp.where(t < l, as_ids(x[n]), 0)",
        "as_ids(x[n])",
        11,
        None,
        ED_TRAINING,
    ),
    "weights of the loss ignored": Mutation(
        "algorithms/ops/log_loss.py",
        "log_loss",
        "return",
        "return (weights * losses)",
        "return (1 * losses)",
        11,
        "5",
        LOSS,
    ),
    "what is masked and what is not": Mutation(
        "algorithms/alg11_training.py",
        "e_training.theta_hat.theta_i",
        "x_tilde",
        "mask, x_n",
        "x_n, mask",
        12,
        "5",
        E_TRAINING,
    ),
    "mask_token is another": Mutation(
        "algorithms/notation.py", "mask_token", "return", "return N_V - 3", "return N_V - 4", 12, "5", E_TRAINING
    ),
    "the same masks for all sequences": Mutation(
        "algorithms/alg11_training.py",
        "e_training.theta_hat.theta_i",
        "x_n",
        "jax.random.fold_in(jax.random.fold_in(key, i), n)",
        "jax.random.fold_in(key, i)",
        12,
        "5",
        E_TRAINING,
    ),
    "the same masks in all epochs": Mutation(
        "algorithms/alg11_training.py",
        "e_training.theta_hat.theta_i",
        "x_n",
        "jax.random.fold_in(jax.random.fold_in(key, i), n)",
        "jax.random.fold_in(key, n)",
        12,
        "5",
        E_TRAINING,
    ),
    "padding masked": Mutation(
        "algorithms/alg11_training.py",
        "e_training.theta_hat.theta_i",
        "7",
        "(x_tilde == mask) & (t < l)",
        "x_tilde == mask",
        12,
        "7",
        E_TRAINING,
    ),
    "target already masked": Mutation(
        "algorithms/alg11_training.py",
        "e_training.theta_hat.theta_i.loss",
        "9",
        "W_u, x_n",
        "W_u, x_tilde",
        12,
        "9",
        E_TRAINING,
    ),
    "padding in the loss": Mutation(
        "algorithms/alg11_training.py",
        "d_training.theta_hat.theta_i.loss",
        "weights",
        "t + 1 < l",
        "t < l",
        13,
        "5",
        D_TRAINING,
    ),
    "target not in the gradient": Mutation(
        "algorithms/ops/chunked_log_loss.py",
        "_through_rows.of_chunk",
        "dY",
        "(P - q) * dlosses[None]",
        "P * dlosses[None]",
        13,
        None,
        LOSS,
    ),
    "smoothing dropped": Mutation(
        "algorithms/ops/chunked_log_loss.py",
        "_at_target",
        "return",
        "of_target + s / N_V * jnp.where(",
        "of_target + 0 * jnp.where(",
        13,
        None,
        LOSS,
    ),
    "columns of weight 0 take part": Mutation(
        "algorithms/ops/log_loss.py",
        "log_loss",
        "takes_part",
        "takes_part = (weights != 0) | is_valid",
        "takes_part = (weights == weights) | is_valid",
        13,
        None,
        LOSS,
    ),
    "a target outside of the vocabulary is the nearest": Mutation(
        "algorithms/ops/log_loss.py",
        "_as_printed",
        "return",
        "return one_or_nan(targets, N_V).astype(losses.dtype) * losses",
        "return losses",
        13,
        None,
        LOSS,
    ),
    "a target outside of the vocabulary sends a gradient": Mutation(
        "algorithms/ops/chunked_log_loss.py",
        "_backward",
        "dlosses",
        "dlosses = dlosses * one_or_nan(targets, N_V).astype(dlosses.dtype)",
        "dlosses = +dlosses",
        13,
        None,
        INVALID_TARGETS,
    ),
    "columns of a batch and their targets in another order": Mutation(
        "algorithms/ops/log_loss.py",
        "token_losses",
        "return",
        "X, W_u",
        "X[:, ::-1], W_u",
        13,
        None,
        BATCHES,
    ),
    "lengths of JAX not checked": Mutation(
        "algorithms/machinery/contract.py",
        "_check_value",
        "if",
        "isinstance(l[0], int)",
        "isinstance(l[0], int) and not isinstance(value, Array)",
        13,
        None,
        LENGTHS,
    ),
}
"""What was changed → the edit."""
