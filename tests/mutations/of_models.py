"""Wrong edits of Algorithms 7 to 15 and of initial parameters."""

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
INFERENCE = (f"{T}/test_inference.py",)
HALF_PRECISION = (f"{T}/test_narrow_types.py::test_what_is_drawn_in_half_precision_follows_its_distribution",)
INITIALIZATION = (f"{T}/test_initialization.py",)

OF_MODELS: dict[str, Mutation] = {
    # Transformers: Algorithms 7 to 10
    "logits not of W_u": Mutation(
        "alg07_unembedding.py", "softmax(logits(e, W_u, b_u))", "softmax(logits(e, -W_u, b_u))", 7, "1", UNEMBEDDING
    ),
    "tied although W_u is given": Mutation(
        "alg07_unembedding.py", "theta.W_e.T if theta.W_u is None else theta.W_u", "theta.W_e.T", 8, "return", D_ORACLE
    ),
    "positions from 1": Mutation("layers.py", "t = self.variant.first_position + (", "t = 1 + (", 8, "2", ED_ORACLE),
    "layers reversed": Mutation(
        "layers.py",
        "remat), X, (stacked, jnp.arange(L)))",
        "remat), X, (stacked, jnp.arange(L)), reverse=True)",
        8,
        "5",
        ED_ORACLE,
    ),
    "encoder unidirectional": Mutation(
        "alg08_ed_transformer.py", "(Z, Z, W_enc, mask,", "(Z, Z, W_enc, UNIDIRECTIONAL,", 8, "5", ED_ORACLE
    ),
    "decoder bidirectional": Mutation(
        "alg08_ed_transformer.py", "(X, X, W_dec, UNIDIRECTIONAL,", "(X, X, W_dec, mask,", 8, "14", ED_ORACLE
    ),
    "cross weights shared": Mutation("alg08_ed_transformer.py", "(X, Z, W_ed,", "(X, Z, W_dec,", 8, "16", ED_ORACLE),
    "cross-attention of X": Mutation("alg08_ed_transformer.py", "(X, Z, W_ed,", "(X, X, W_ed,", 8, "16", ED_ORACLE),
    "norm 4 for norm 5": Mutation(
        "alg08_ed_transformer.py", "X = f.layer_norm(X, *norm5)", "X = f.layer_norm(X, *norm4)", 8, "19", ED_ORACLE
    ),
    "no residual": Mutation("alg09_e_transformer.py", "X = X + f.mlp(X,", "X = f.mlp(X,", 9, "7", E_ORACLE),
    "bias of W_f skipped": Mutation(
        "alg09_e_transformer.py",
        "linear(theta.W_f, X, theta.b_f",
        "linear(theta.W_f, X, 0 * theta.b_f",
        9,
        "10",
        E_ORACLE,
    ),
    "residual of the normalized X": Mutation(
        "alg10_d_transformer.py", "X = X + f.mh_attention(", "X = X_tilde + f.mh_attention(", 10, "6", D_ORACLE
    ),
    "MLP of the residual stream": Mutation("alg10_d_transformer.py", "f.mlp(X_tilde,", "f.mlp(X,", 10, "8", D_ORACLE),
    "no final norm": Mutation(
        "alg10_d_transformer.py", "X = f.layer_norm(X, *theta.norm)", "X = +X", 10, "10", D_ORACLE
    ),
    "first layer twice": Mutation(
        "alg10_d_transformer.py",
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
        "alg09_e_transformer.py", "mask = StructuralMask(length=length)", "mask = StructuralMask()", 12, "8", PADDING
    ),
    "output bias skipped": Mutation(
        "alg09_e_transformer.py",
        "unembedding_matrix(theta), b_u=theta.b_u)",
        "unembedding_matrix(theta))",
        9,
        None,
        VARIANTS,
    ),
    "embedding not scaled": Mutation(
        "layers.py", "if self.variant.scale_embedding else E", "if False else E", 8, None, VARIANTS
    ),
    "packed documents attend each other": Mutation(
        "alg10_d_transformer.py", "UNIDIRECTIONAL & documents(segments)", "UNIDIRECTIONAL", 10, None, PACKED
    ),
    "one key for all layers": Mutation(
        "layers.py", "fold_in(key, draws * l + i)", "fold_in(key, i)", 10, None, LAYER_KEYS
    ),
    "inputs of a rule vary differently": Mutation(
        "machinery/varying.py",
        "return jax.tree.map(cast, tree) if axes else tree",
        "return tree",
        4,
        None,
        SHARD_MAP,
    ),
    # Training: Algorithms 11 to 13
    "target off by one": Mutation(
        "alg11_training.py",
        "z_length=l_z, variant=variant, implementation=implementation\n                )\n                W_u, b_u, weights = variant.unembedding.matrix(theta), theta.b_u, (t + 1 < l).astype(X.dtype)\n                loss = log_loss(X, W_u, jnp.roll(x_n, -1),",
        "z_length=l_z, variant=variant, implementation=implementation\n                )\n                W_u, b_u, weights = variant.unembedding.matrix(theta), theta.b_u, (t + 1 < l).astype(X.dtype)\n                loss = log_loss(X, W_u, x_n,",
        11,
        "5",
        ED_TRAINING,
    ),
    "uphill": Mutation(
        "alg11_training.py",
        "theta - (eta * g).astype(theta.dtype), theta, g)  # line 10",
        "theta + (eta * g).astype(theta.dtype), theta, g)  # line 10",
        12,
        "10",
        E_TRAINING,
    ),
    "padding of the sequence poisons": Mutation(
        "alg11_training.py",
        "z_n, l_z, x_n = z[n], _length(z, z_lengths, n), jnp.where(t < l, as_ids(x[n]), 0)",
        "z_n, l_z, x_n = z[n], _length(z, z_lengths, n), as_ids(x[n])",
        11,
        None,
        ED_TRAINING,
    ),
    "the length of another context": Mutation(
        "alg11_training.py",
        "z_n, l_z, x_n = z[n], _length(z, z_lengths, n), jnp.where",
        "z_n, l_z, x_n = z[n], _length(z, z_lengths, 0), jnp.where",
        11,
        "4",
        ED_TRAINING,
    ),
    "weights of the loss ignored": Mutation(
        "ops/log_loss.py", "return (weights * losses)", "return (1 * losses)", 11, "5", LOSS
    ),
    "what is masked and what is not": Mutation(
        "alg11_training.py",
        "jnp.where(draw(key_n, p_mask), mask, x_n)",
        "jnp.where(draw(key_n, p_mask), x_n, mask)",
        12,
        "5",
        E_TRAINING,
    ),
    "mask_token is another": Mutation("notation.py", "return N_V - 3", "return N_V - 4", 12, "5", E_TRAINING),
    "the same masks for all sequences": Mutation(
        "alg11_training.py",
        "jax.random.fold_in(jax.random.fold_in(key, i), n)",
        "jax.random.fold_in(key, i)",
        12,
        "5",
        E_TRAINING,
    ),
    "the same masks in all epochs": Mutation(
        "alg11_training.py",
        "jax.random.fold_in(jax.random.fold_in(key, i), n)",
        "jax.random.fold_in(key, n)",
        12,
        "5",
        E_TRAINING,
    ),
    "padding masked": Mutation(
        "alg11_training.py", "(x_tilde == mask) & (t < l)", "(x_tilde == mask)", 12, "7", E_TRAINING
    ),
    "target already masked": Mutation(
        "alg11_training.py", "log_loss(X, W_u, x_n, weights", "log_loss(X, W_u, x_tilde, weights", 12, "9", E_TRAINING
    ),
    "padding in the loss": Mutation(
        "alg11_training.py",
        "x_n, theta, variant=variant, implementation=implementation\n                )\n                W_u, b_u, weights = variant.unembedding.matrix(theta), theta.b_u, (t + 1 < l)",
        "x_n, theta, variant=variant, implementation=implementation\n                )\n                W_u, b_u, weights = variant.unembedding.matrix(theta), theta.b_u, (t < l)",
        13,
        "5",
        D_TRAINING,
    ),
    "target not in the gradient": Mutation(
        "ops/chunked_log_loss.py", "(P - q) * dlosses[None]", "P * dlosses[None]", 13, None, LOSS
    ),
    "smoothing dropped": Mutation(
        "ops/chunked_log_loss.py", "of_target + s / N_V * jnp.where(", "of_target + 0 * jnp.where(", 13, None, LOSS
    ),
    "columns of weight 0 take part": Mutation(
        "ops/log_loss.py",
        "takes_part = (weights != 0) | is_valid",
        "takes_part = (weights == weights) | is_valid",
        13,
        None,
        LOSS,
    ),
    "a target outside of the vocabulary is the nearest": Mutation(
        "ops/log_loss.py",
        "return one_or_nan(targets, N_V).astype(losses.dtype) * losses",
        "return losses",
        13,
        None,
        LOSS,
    ),
    "a target outside of the vocabulary sends a gradient": Mutation(
        "ops/chunked_log_loss.py",
        "dlosses = dlosses * one_or_nan(targets, N_V).astype(dlosses.dtype)",
        "dlosses = +dlosses",
        13,
        None,
        INVALID_TARGETS,
    ),
    "columns of a batch and their targets in another order": Mutation(
        "ops/log_loss.py",
        "if N_V is None else N_V, cap, X, W_u,",
        "if N_V is None else N_V, cap, X[:, ::-1], W_u,",
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
    "column off by one": Mutation("alg14_inference.py", "X[..., l + i - 1]", "X[..., l + i - 2]", 14, "4", INFERENCE),
    "temperature inverted": Mutation(
        "alg14_inference.py",
        "shifted(log_p)) / jnp.where(is_greedy(tau), 1, tau)",
        "shifted(log_p)) * jnp.where(is_greedy(tau), 1, tau)",
        14,
        "5",
        INFERENCE,
    ),
    "one key for all tokens": Mutation(
        "alg14_inference.py",
        "sample(log_p, tau, fold_in(key, i))",
        "sample(log_p, tau, fold_in(key, 0))",
        14,
        "5",
        INFERENCE,
    ),
    "greedy ignored": Mutation(
        "alg14_inference.py",
        "jnp.where(is_greedy(tau), jnp.argmax",
        "jnp.where(tau < 0, jnp.argmax",
        14,
        "5",
        INFERENCE,
    ),
    "τ = ∞ not uniform": Mutation(
        "alg14_inference.py",
        "jnp.where(is_greedy(tau), 1, tau)",
        "jnp.where(is_greedy(1 / tau), 1, tau)",
        14,
        "5",
        INFERENCE,
    ),
    "τ = ∞ draws what is impossible": Mutation(
        "alg14_inference.py", "jnp.where(impossible, -jnp.inf, log_q)", "log_q", 14, None, INFERENCE
    ),
    "keys of XLA's generator side by side": Mutation(
        "ops/draws.py", "draw if is_default else one_after_another", "draw", 14, None, INFERENCE
    ),
    "drawn in the dtype of the parameters": Mutation(
        "alg14_inference.py",
        "log_p = log_p.astype(accumulation_dtype(log_p.dtype))",
        "log_p = log_p.astype(jnp.bfloat16)",
        14,
        None,
        HALF_PRECISION,
    ),
    "prompt in the result": Mutation(
        "alg14_inference.py", "y = x_y[..., l:].astype", "y = x_y[..., l - 1 : -1].astype", 14, "return", INFERENCE
    ),
    "no bos_token": Mutation("alg14_inference.py", ".at[..., 0].set(bos)", ".at[..., 0].set(0)", 15, "1", INFERENCE),
    "padded with another token": Mutation(
        "alg14_inference.py", "jnp.full((*batch, l_max), eos)", "jnp.full((*batch, l_max), 0)", 15, None, INFERENCE
    ),
    "eos_token is another": Mutation("notation.py", "return N_V - 1", "return N_V - 3", 15, "3", INFERENCE),
    "stops early": Mutation("alg14_inference.py", "& (l < l_max)", "& (l < l_max - 1)", 15, "3", INFERENCE),
    "column of the step before": Mutation("alg14_inference.py", "X[..., l - 1]", "X[..., l - 2]", 15, "5", INFERENCE),
    "one key for all draws": Mutation(
        "alg14_inference.py", "fold_in(key, l - 1)", "fold_in(key, 0)", 15, "6", INFERENCE
    ),
    "token written too late": Mutation(
        "alg14_inference.py", "x_hat.at[..., l].set(y)", "x_hat.at[..., l + 1].set(y)", 15, "7", INFERENCE
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
"""What was changed → the edit."""
