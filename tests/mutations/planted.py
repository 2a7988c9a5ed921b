"""The bugs that the self-test plants: each changes what a line computes, and the cross-check must name that line."""

from .edits import Edit, Planted

__all__ = ["PLANTED"]

# fmt: off
_ROWS: dict[str, tuple[tuple[str, str, str, str, str, int, str, str | None], ...]] = {
    # file of algorithms/: what is wrong, function, statement, code, code in its place, algorithm, line, variant
    "alg01_embedding.py": (
        ("token off by one", "token_embedding", "return", "W_e[:, v]", "W_e[:, v - 1]", 1, "return", None),
        ("position off by one", "positional_embedding", "return", "W_p[:, l]", "W_p[:, l + 1]", 2, "return", None),
        ("sine and cosine exchanged", "sinusoid", "return", "[xp.sin(angle), xp.cos(angle)]", "[xp.cos(angle), xp.sin(angle)]", 8, "2", "VASWANI"),
    ),
    "alg03_attention.py": (
        ("bias of the query skipped", "single_query_attention", "1", "e, b_q", "e, 0 * b_q", 3, "1", None),
        ("1/√d dropped, one query", "single_query_attention", "4", " / jnp.sqrt(q.shape[0]).astype(s.dtype)", "", 3, "4", None),
        ("bias of the values skipped", "attention", "3", "Z, b_v", "Z, 0 * b_v", 4, "3", None),
        ("scores not of keys", "attention", "4", "f.scores(K, Q,", "f.scores(2 * K, Q,", 4, "4", None),
        ("1/√d dropped", "attention", "return", "S / math.sqrt(S.d_attn)", "S", 4, "return", None),
        ("heads in the wrong order", "mh_attention", "3", "Y = jnp.concatenate(Y)", "Y = jnp.concatenate(Y[::-1])", 5, "3", None),
        ("bias of the output skipped", "mh_attention", "return", "W.b_o, name", "0 * W.b_o, name", 5, "return", None),
    ),
    "alg06_layer_norm.py": (
        ("mean not subtracted", "layer_norm", "return", "e_hat = (e - m) / jnp.sqrt(v", "e_hat = e / jnp.sqrt(v", 6, "return", None),
        ("ε misplaced", "layer_norm", "return", "(e - m) / jnp.sqrt(v + epsilon)", "(e - m) / (jnp.sqrt(v) + epsilon)", 6, "return", None),
        ("variance unbiased", "layer_norm", "2", "v = jnp.square(e - m).mean(axis=0, keepdims=True)", "v = e.var(axis=0, ddof=1, keepdims=True)", 6, "2", None),
        ("β skipped", "layer_norm", "return", "as_columns(gamma, e) + as_columns(beta, e)", "as_columns(gamma, e)", 6, "return", None),
        ("layer norm over tokens", "layer_norm", "1", "m = e.mean(axis=0, keepdims=True)", "m = e.mean(axis=-1, keepdims=True)", 8, "6", None),
        ("mean of RMSnorm", "rms_norm", "return", "e_hat = e / jnp.sqrt(v + epsilon) *", "e_hat = (e - e.mean()) / jnp.sqrt(v + epsilon) *", 6, "return", "LLAMA"),
        ("RMSnorm's ε misplaced", "rms_norm", "return", "jnp.sqrt(v + epsilon)", "(jnp.sqrt(v) + epsilon)", 6, "return", "LLAMA"),
        ("square of the deviation from the mean for RMSnorm", "rms_norm", "2", "jnp.square(e)", "jnp.square(e - e.mean(axis=0, keepdims=True))", 6, "2", "LLAMA"),
    ),
    "alg07_unembedding.py": (
        ("logits not of W_u", "unembedding", "1", "logits(e, W_u, b_u)", "logits(e, -W_u, b_u)", 7, "1", None),
    ),
    "alg08_ed_transformer.py": (
        ("encoder unidirectional", "ed_encoding.Z", "5", "W.attention, mask", "W.attention, UNIDIRECTIONAL", 8, "5", None),
        ("decoder bidirectional", "ed_decoder_lines.X", "14", "W.self_attention, mask", "W.self_attention, BIDIRECTIONAL", 8, "14", None),
        ("cross weights shared", "ed_decoder_lines.X", "16", "W.cross_attention", "W.self_attention", 8, "16", None),
        ("cross-attention of X", "ed_decoder_lines.X", "16", "context=Z", "context=+X", 8, "16", None),
        ("norm 4 for norm 5", "ed_decoder_lines.X", "19", "norm5", "norm4", 8, "19", None),
        ("context embedded as the sequence", "of_context", "own", "theta.context is None", "True", 2, "return", "BART"),
        ("final norm of the encoder dropped", "ed_encoding", "9", "f.end(Z, theta.encoder_norm)", "+Z", 8, "9", "T5"),
    ),
    "alg09_e_transformer.py": (
        ("no residual", "e_encoding.X", "7", "X + f.mlp", "f.mlp", 9, "7", None),
    ),
    "alg10_d_transformer.py": (
        ("residual of the normalized X", "d_lines.X", "6", "X = X + f.mh_attention(", "X = X_tilde + f.mh_attention(", 10, "6", None),
        ("MLP of the residual stream", "d_lines.X", "8", "f.mlp(X_tilde,", "f.mlp(X,", 10, "8", None),
        ("no final norm", "d_lines", "10", "f.layer_norm(X, theta.norm)", "+X", 10, "10", None),
        ("first layer twice", "d_lines", "4", "theta.layers", '__import__("jax").tree.map(lambda a: a.at[1].set(a[0]), theta.layers)', 10, "5", None),
    ),
    "alg11_training.py": (
        ("target off by one", "ed_training.theta_hat.theta_i.loss", "5", "jnp.roll(x_n, -1)", "x_n", 11, "5", None),
        ("uphill", "descend", "return", "theta - (eta", "theta + (eta", 11, "6", None),
        ("the length of another context", "ed_training.theta_hat.theta_i", "l_z", "_length(z, z_length, n)", "_length(z, z_length, 0)", 11, "4", None),
        ("what is masked and what is not", "e_training.theta_hat.theta_i", "x_tilde", "mask, x_n", "x_n, mask", 12, "5", None),
        ("the same masks for all sequences", "e_training.theta_hat.theta_i", "x_n", "jax.random.fold_in(jax.random.fold_in(key, i), n)", "jax.random.fold_in(key, i)", 12, "5", None),
        ("the same masks in all epochs", "e_training.theta_hat.theta_i", "x_n", "jax.random.fold_in(jax.random.fold_in(key, i), n)", "jax.random.fold_in(key, n)", 12, "5", None),
        ("padding masked", "e_training.theta_hat.theta_i", "7", "(x_tilde == mask) & (t < l)", "x_tilde == mask", 12, "7", None),
        ("target already masked", "e_training.theta_hat.theta_i.loss", "9", "theta, x_n", "theta, x_tilde", 12, "9", None),
        ("padding in the loss", "d_training.theta_hat.theta_i.loss", "5", "t + 1 < l", "t < l", 13, "5", None),
    ),
    "alg14_inference.py": (
        ("column off by one", "d_inference.x_y", "4", "l + i - 1", "l + i - 2", 14, "4", None),
        ("temperature inverted", "tempered", "log_q", "/ (divisor", "* (divisor", 14, "5", None),
        ("one key for all tokens", "d_inference.x_y", "5", "fold_in(key, i)", "fold_in(key, 0)", 14, "5", None),
        ("greedy ignored", "sample", "drawn", "is_greedy(tau)", "tau < 0", 14, "5", None),
        ("τ = ∞ not uniform", "tempered", "divisor", "is_greedy(tau)", "is_greedy(tau) | jnp.isinf(tau)", 14, "5", None),
        ("prompt in the result", "d_inference", "return", "x_y[..., l:]", "x_y[..., l - 1 : -1]", 14, "return", None),
        ("no bos_token", "ed_inference", "1", "set(bos)", "set(0)", 15, "1", None),
        ("stops early", "ed_inference", "x_hat", "l < l_max", "l < l_max - 1", 15, "3", None),
        ("column of the step before", "ed_inference.x_hat", "5", "l - 1", "l - 2", 15, "5", None),
        ("one key for all draws", "ed_inference.x_hat", "6", "fold_in(key, l - 1)", "fold_in(key, 0)", 15, "6", None),
        ("token written too late", "ed_inference.x_hat", "7", "x_hat.at[..., l]", "x_hat.at[..., l + 1]", 15, "7", None),
    ),
    "layers.py": (
        ("layers reversed", "Lines._run", "return", "unroll=static().unroll)", "unroll=static().unroll, reverse=True)", 8, "5", None),
        ("bias of W_f skipped", "Lines.projection", "return", "linear(theta.W_f, X, theta.b_f", "linear(theta.W_f, X, 0 * theta.b_f", 9, "10", None),
        ("padding of the sequence attended", "Lines.mh_attention", "mask", "padded(mask, self.length if is_own else self.z_length)", "mask if is_own else padded(mask, self.z_length)", 11, "4", None),
        ("learned positions added to rotary ones", "Lines.at_positions", "X", "X if W_p_t is None else X + W_p_t", "X + 0.1 if W_p_t is None else X + W_p_t", 10, "2", "LLAMA"),
        ("activation of the algorithm for the variant's", "Lines.mlp", "name", "line.activation or activation.__name__", "activation.__name__", 10, "8", "LLAMA"),
        ("norm of the embeddings dropped", "Lines.at_positions", "X", "self.layer_norm(X, theta.embedding_norm)", "X", 9, "2", "ALBERT"),
        ("bias of the projected embeddings dropped", "Lines.at_positions", "return", "theta.b_in", "None", 9, "2", "ALBERT"),
    ),
    "masks.py": (
        ("mask transposed", "StructuralMask.permits", "permitted", "permitted &= t_z <= t_x", "permitted &= t_x <= t_z", 4, "5", None),
        ("mask without the token itself", "StructuralMask.permits", "permitted", "permitted &= t_z <= t_x", "permitted &= t_z < t_x", 4, "5", None),
    ),
    "model/attention.py": (
        ("keys not rotated", "Attention.read", "Q", "self.positions.rotate(K, t_z)", "K", 4, "4", "LLAMA"),
        ("window off by one", "Attention.windowed", "mask", "self.window)", "self.window + 1)", 4, "5", "GEMMA2"),
        ("cap of the scores dropped", "_Steps.scores", "options", '"cap": self.line.cap', '"cap": None', 4, "5", "GEMMA2"),
        ("scale dropped", "Attention.read", "Q", "scaled(Q, self.scale * Q.shape[1] ** 0.5)", "Q", 4, "4", "GPT_NEO"),
        ("norms of queries and keys dropped", "Attention._normalized", "return", "norm.of_heads(A, gamma, self.heads_together)", "A", 4, "4", "QWEN3"),
        ("norm of what attention adds dropped", "Attention._computed", "V_tilde", "self.normalize_output(V_tilde, of_lines.norm_out)", "V_tilde", 10, "6", "GEMMA2"),
    ),
    "model/distances.py": (
        ("u left out", "ByDistance.scores", "return", "self.contents(Q, W)", "Q", 4, "4", "GOPHER"),
        ("distances reversed", "TransformerXL.keys", "r", "sinusoid(-distances,", "sinusoid(distances,", 4, "5", "GOPHER"),
        ("u in place of v", "TransformerXL.queries", "return", "W.v.reshape", "W.u.reshape", 4, "5", "GOPHER"),
        ("scores that grow with the distance", "ALiBi.keys", "return", "-jnp.asarray(slopes", "jnp.asarray(slopes", 4, "5", "BLOOM"),
        ("a bucket begins one distance later", "Distances.bucket", "farther", ">= jnp", "> jnp", 4, "5", "T5"),
    ),
    "model/embedding.py": (
        ("positions from 1", "Embedding.of_positions", "t", "self.first_position + t", "1 + t", 8, "2", None),
        ("embedding not scaled", "Embedding.tokens", "return", "if self.scaled", "if False", 8, "2", "VASWANI"),
        ("factor of embeddings dropped", "Embedding.tokens", "scaled", "E * self.factor", "E", 10, "2", "GRANITE"),
        ("first position dropped", "Embedding.of_positions", "t", "self.first_position + t", "t", 2, "return", "OPT"),
        ("tied although W_u is given", "Unembedding.matrix", "W_u", "if theta.W_u is None else theta.W_u", "", 8, "return", None),
        ("output bias skipped", "Unembedding.__call__", "return", "b_u=theta.b_u", "b_u=None", 7, "1", "BERT"),
        ("cap of the logits dropped", "Unembedding.__call__", "return", "cap=self.cap", "cap=None", 7, "1", "GEMMA2"),
        ("tied unembedding not scaled", "Unembedding.matrix", "return", "W_u * factor", "W_u", 7, "1", "T5"),
        ("factor of the logits dropped", "Unembedding.matrix", "return", "W_u * factor", "1 * W_u", 7, "1", "COHERE2"),
    ),
    "model/rg_lru.py": (
        ("new rows not scaled by √(1 − α²)", "RGLRU._read", "return", "jnp.where(begins, 1, _root(-jnp.expm1(2 * log_alpha))) * ", "", 10, "6", "RECURRENT_GEMMA"),
    ),
    "model/delta.py": (
        ("queries of the delta rule not scaled", "GatedDelta.rates", "return", "Q * self.d_key**-0.5", "Q", 10, "6", "QWEN3_NEXT"),
    ),
    "model/experts.py": (
        ("shared expert not gated", "Experts.__call__", "Y", "jax.nn.sigmoid(linear(W.w_s[None], X)) * shared", "shared", 10, "8", "QWEN3_NEXT"),
        ("weights of experts not renormalized", "Experts.weights", "G", "G / jnp.where(total == 0, 1, total)", "G", 10, "8", "MIXTRAL"),
    ),
    "model/mlp.py": (
        ("gate and MLP exchanged", "MLP.hidden", "return", "activate(activation, G) * U", "G * activate(activation, U)", 10, "8", "LLAMA"),
        ("norm of what the MLP adds dropped", "MLP.__call__", "return", "self.normalize_output(Y, W.norm_out)", "Y", 10, "8", "GEMMA2"),
    ),
    "model/norm.py": (
        ("γ for γ + 1", "RMSNorm.__call__", "gamma", "norm.gamma + self.offset", "norm.gamma", 6, "return", "GEMMA2"),
        ("a norm of each head for one of all", "RMSNorm.of_heads", "return", "(lambda Q_h: self(Q_h, LayerNormParams(gamma, None)))(each)", "(lambda q, g: self(q, LayerNormParams(g, None)))(Q, gamma.reshape(len(Q), -1))", 4, "4", "OLMO2"),
    ),
    "model/positions.py": (
        ("frequencies of the next pair", "Rotary.rotate", "frequencies", "np.arange(0, d, 2,", "np.arange(2, d + 2, 2,", 4, "4", "LLAMA"),
        ("sines and cosines of a rotation exchanged", "Rotary.rotate", "cos", "(of.cos, of.sin)", "(of.sin, of.cos)", 4, "4", "LLAMA"),
        ("all rows rotated", "Rotary.rows", "d", "d_attn * self.share", "d_attn", 4, "4", "NEOX"),
    ),
    "model/variant.py": (
        ("turns counted from 1", "Variant.by_attention", "turn", "[l %", "[(l + 1) %", 4, "4", "GEMMA2"),
    ),
    "notation.py": (
        ("mask_token is another", "mask_token", "return", "return N_V - 3", "return N_V - 4", 12, "5", None),
        ("eos_token is another", "eos_token", "return", "return N_V - 1", "return N_V - 3", 15, "3", None),
    ),
    "ops/activation.py": (
        ("GELU approximated", "", "_FUNCTIONS", '"gelu": (gelu,', '"gelu": (gelu_tanh,', 9, "7", None),
        ("ReLU for GELU", "", "_FUNCTIONS", '"gelu": (gelu,', '"gelu": (relu,', 9, "7", None),
        ("ReLU for its square", "", "_FUNCTIONS", '"relu_squared": (relu_squared,', '"relu_squared": (relu,', 10, "8", "NANOCHAT"),
        ("GELU for ReLU", "", "_FUNCTIONS", '"relu": (relu,', '"relu": (gelu,', 8, "7", None),
    ),
    "ops/attention/dispatch.py": (
        ("mask of the other polarity", "LazyScores.array.masked", "return", "jnp.where(Mask,", "jnp.where(~Mask,", 4, "5", None),
        ("masked scores 0, not −∞", "LazyScores.array.masked", "return", "-jnp.inf", "0", 4, "5", None),
        ("attention weights ignored", "LazyScores.array.weighted", "return", "@ A)", "@ jnp.full_like(A, 1 / A.shape[0]))", 4, "return", None),
        ("heads share keys by h mod H_kv", "LazyScores.array", "K", "jnp.repeat(a, len(Q) // len(a), axis=0)", "jnp.concatenate([a] * (len(Q) // len(a)))", 4, "4", "LLAMA"),
    ),
    "ops/attention/scores.py": (
        ("softmax Jacobian without aᵀg", "Block.backward", "dS", "A * (g - delta)", "A * g", 11, "6", None),
    ),
    "ops/log_loss.py": (
        ("weights of the loss ignored", "log_loss", "weights", "jnp.where(takes_part, weights.astype(wide), 0)", "jnp.ones_like(weights)", 11, "5", None),
    ),
    "ops/rotation.py": (
        ("rotated backwards", "_rotated", "return", "[U * cos - V * sin, U * sin + V * cos]", "[U * cos + V * sin, V * cos - U * sin]", 4, "4", "LLAMA"),
        ("halves for neighbors", "_rotated", "shape", 'pairs == "neighbors"', 'pairs != "neighbors"', 4, "4", "LLAMA"),
    ),
    "ops/softmax.py": (
        ("columns of −∞ are 0/0", "softmax", "return", "jnp.where(denominator == 0, 1, denominator)", "denominator", 4, "return", None),
        ("softmax over the wrong axis", "softmax", "denominator", "numerator.sum(axis=0, keepdims=True)", "numerator.sum(axis=-1, keepdims=True)", 4, "return", None),
    ),
    "orders.py": (
        ("attention added twice where it is side by side", "_side_by_side", "8", "X + Y", "X + Y + Y", 10, "8", "NEOX"),
        ("one after the other for side by side", "_side_by_side", "6", "f.mh_attention", "X + f.mh_attention", 10, "6", "NEOX"),
        ("the residual stream for the one norm", "_side_by_side", "7", "X_tilde if W.norm2", "X if W.norm2", 10, "7", "COHERE2"),
    ),
}
# fmt: on

PLANTED: dict[str, Planted] = {
    name: Planted(Edit(f"algorithms/{file}", function, statement, old, new), algorithm, line, variant)
    for file, rows in _ROWS.items()
    for name, function, statement, old, new, algorithm, line, variant in rows
}
"""What is wrong → the bug."""
