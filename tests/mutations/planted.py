"""The bugs that the self-test plants: each changes what a line computes, and the cross-check must name that line.

From the numbers of the compiled functions alone, the check of foreign code must say what the line computes instead.
"""

from training.foreign.catalogue import SLOTS, choice

from .edits import Edit, Planted

__all__ = ["PLANTED"]

# fmt: off
_ROWS: dict[str, tuple[tuple[str, str, str, str, str, int, str, str | None, str], ...]] = {
    # file of algorithms/: what is wrong, function, statement, code, code in its place, algorithm, line, variant; what the
    # check of foreign code says, behind the word Algorithm: a choice of the catalogue, or other words
    "alg01_embedding.py": (
        ("token off by one", "token_embedding", "return", "W_e[:, v]", "W_e[:, v - 1]", 1, "return", None, "1, line return: token_index=x-1"),
        ("position off by one", "positional_embedding", "return", "W_p[:, l]", "W_p[:, l + 1]", 2, "return", None, "2, line return: position_index=t+1"),
        ("sine and cosine exchanged", "sinusoid", "return", "[xp.sin(angle), xp.cos(angle)]", "[xp.cos(angle), xp.sin(angle)]", 8, "2", "VASWANI", "2, line return: position_table=sinusoids 10000, neighbours, 2i/d, cos before sin"),
        ("logits not of W_u", "unembedding", "1", "logits(e, W_u, b_u)", "logits(e, -W_u, b_u)", 7, "1", None, "10, line return: u_square=-W"),
    ),
    "alg03_attention.py": (
        ("bias of the query skipped", "single_query_attention", "1", "e, b_q", "e, 0 * b_q", 3, "1", None, "4, line 1: q_bias=none"),
        ("1/√d dropped, one query", "single_query_attention", "4", " / jnp.sqrt(q.shape[0]).astype(s.dtype)", "", 3, "4", None, "4, line return: scale=1"),
        ("bias of the values skipped", "attention", "3", "Z, b_v", "Z, 0 * b_v", 4, "3", None, "4, line 3: v_bias=none"),
        ("scores not of keys", "attention", "4", "f.scores(K, Q,", "f.scores(2 * K, Q,", 4, "4", None, "4, line 4: scale=2/√d"),
        ("1/√d dropped", "attention", "return", "S / math.sqrt(S.d_attn)", "S", 4, "return", None, "4, line return: scale=1"),
        ("heads in the wrong order", "mh_attention", "3", "Y = jnp.concatenate(Y)", "Y = jnp.concatenate(Y[::-1])", 5, "3", None, "5, line 3: concat=reversed"),
        ("bias of the output skipped", "mh_attention", "return", "W.b_o, name", "0 * W.b_o, name", 5, "return", None, "5, line return: o_bias=none"),
    ),
    "alg06_layer_norm.py": (
        ("mean not subtracted", "layer_norm", "return", "e_hat = (e - m) / jnp.sqrt(v", "e_hat = e / jnp.sqrt(v", 6, "return", None, "6, line return: norm_centre=none"),
        ("ε misplaced", "layer_norm", "return", "(e - m) / jnp.sqrt(v + epsilon)", "(e - m) / (jnp.sqrt(v) + epsilon)", 6, "return", None, "6, line return: norm_epsilon=√+0.01"),
        ("variance unbiased", "layer_norm", "2", "v = jnp.square(e - m).mean(axis=0, keepdims=True)", "v = e.var(axis=0, ddof=1, keepdims=True)", 6, "2", None, "6, line 2: norm_variance=unbiased"),
        ("β skipped", "layer_norm", "return", "as_columns(gamma, e) + as_columns(beta, e)", "as_columns(gamma, e)", 6, "return", None, "6, line return: norm_beta=none"),
        ("layer norm over tokens", "layer_norm", "1", "m = e.mean(axis=0, keepdims=True)", "m = e.mean(axis=-1, keepdims=True)", 8, "6", None, "6, line 1: norm_mean=tokens"),
        ("mean of RMSnorm", "rms_norm", "return", "e_hat = e / jnp.sqrt(v + epsilon) *", "e_hat = (e - e.mean()) / jnp.sqrt(v + epsilon) *", 6, "return", "LLAMA", "6, line return: norm_centre=everything"),
        ("RMSnorm's ε misplaced", "rms_norm", "return", "jnp.sqrt(v + epsilon)", "(jnp.sqrt(v) + epsilon)", 6, "return", "LLAMA", "6, line return: norm_epsilon=√+0.01"),
        ("square of the deviation from the mean for RMSnorm", "rms_norm", "2", "jnp.square(e)", "jnp.square(e - e.mean(axis=0, keepdims=True))", 6, "2", "LLAMA", "6, line 2: norm_variance=of e - m"),
    ),
    "alg08_ed_transformer.py": (
        ("encoder unidirectional", "ed_encoding.Z", "5", "W.attention, mask", "W.attention, UNIDIRECTIONAL", 8, "5", None, "4, line 5: mask=causal"),
        ("decoder bidirectional", "ed_decoder_lines.X", "14", "W.self_attention, mask", "W.self_attention, BIDIRECTIONAL", 8, "14", None, "4, line 5: mask=none"),
        ("cross weights shared", "ed_decoder_lines.X", "16", "W.cross_attention", "W.self_attention", 8, "16", None, "4, line 1: shared=self"),
        ("cross-attention of X", "ed_decoder_lines.X", "16", "context=Z", "context=+X", 8, "16", None, "4, line 2: kv_reads=X"),
        ("norm 4 for norm 5", "ed_decoder_lines.X", "19", "norm5", "norm4", 8, "19", None, "6, line return: norm_which=previous"),
        ("context embedded as the sequence", "of_context", "own", "theta.context is None", "True", 2, "return", "BART", "2, line return: context_parameters=sequence"),
        ("final norm of the encoder dropped", "ed_encoding", "9", "f.layer_norm(Z, theta.encoder_norm)", "+Z", 8, "9", "T5", "6, line return: norm_here=missing"),
    ),
    "alg09_e_transformer.py": (
        ("no residual", "e_encoding.X", "7", "X + f.mlp", "f.mlp", 9, "7", None, "9, line 7: residual=none"),
    ),
    "alg10_d_transformer.py": (
        ("residual of the normalized X", "d_lines.X", "6", "X = X + f.mh_attention(", "X = X_tilde + f.mh_attention(", 10, "6", None, "10, line 6: residual=X̃"),
        ("MLP of the residual stream", "d_lines.X", "8", "f.mlp(X_tilde,", "f.mlp(X,", 10, "8", None, "10, line 8: reads=X"),
        ("no final norm", "d_lines", "10", "f.layer_norm(X, theta.norm)", "+X", 10, "10", None, "6, line return: norm_here=missing"),
        ("first layer twice", "d_lines", "4", "theta.layers", '__import__("jax").tree.map(lambda a: a.at[1].set(a[0]), theta.layers)', 10, "5", None, "10, line 6: layer=first"),
    ),
    "alg11_training.py": (
        ("target off by one", "ed_training.theta_hat.theta_i.loss", "5", "jnp.roll(x_n, -1)", "x_n", 11, "5", None, "11, line 5: loss=not shifted, t < ℓ"),
        ("uphill", "descend", "return", "theta - (eta", "theta + (eta", 11, "6", None, "11, line 6: the gradient is -1 times that of the loss (uphill): of all parameters"),
        ("the length of another context", "ed_training.theta_hat.theta_i", "l_z", "_length(z, z_length, n)", "_length(z, z_length, 0)", 11, "4", None, "11, line 4: the padding of the context is attended to"),
        ("what is masked and what is not", "e_training.theta_hat.theta_i", "x_tilde", "mask, x_n", "x_n, mask", 12, "5", None, "12, line 5: the tokens that are not drawn are masked"),
        ("the same masks for all sequences", "e_training.theta_hat.theta_i", "x_n", "jax.random.fold_in(jax.random.fold_in(key, i), n)", "jax.random.fold_in(key, i)", 12, "5", None, "12, line 5: other tokens are masked than the draws say: number 2, 5"),
        ("the same masks in all epochs", "e_training.theta_hat.theta_i", "x_n", "jax.random.fold_in(jax.random.fold_in(key, i), n)", "jax.random.fold_in(key, n)", 12, "5", None, "12, line 5: other tokens are masked than the draws say: number 2, 5"),
        ("padding masked", "e_training.theta_hat.theta_i", "7", "(x_tilde == mask) & (t < l)", "x_tilde == mask", 12, "7", None, "12, line 7: padding that is masked is predicted, too"),
        ("target already masked", "e_training.theta_hat.theta_i.loss", "9", "theta, x_n", "theta, x_tilde", 12, "9", None, "12, line 9: masked_loss=mask token"),
        ("weight of the second head's loss dropped", "d_training.theta_hat.theta_i.loss", "loss", "weight * mtp_token_losses", "mtp_token_losses", 13, "6", None, "13, line 5: mtp_loss=1 sum"),
        ("padding in the loss", "d_training.theta_hat.theta_i.loss", "5", "t + 1 < l", "t < l", 13, "5", None, "13, line 5: loss=wrapped, sum"),
    ),
    "mtp.py": (
        ("halves of W_m exchanged", "mtp_columns", "return", "[e, f.layer_norm(X, head.norm_x)]", "[f.layer_norm(X, head.norm_x), e]", 13, "6", None, "10, line 10: mtp_order=[X; e]"),
    ),
    "alg14_inference.py": (
        ("column off by one", "d_inference.x_y", "4", "l + i - 1", "l + i - 2", 14, "4", None, "14, line 5: sampling=column before"),
        ("temperature inverted", "tempered", "log_q", "/ (divisor", "* (divisor", 14, "5", None, "14, line 5: sampling=inverse"),
        ("one key for all tokens", "d_inference.x_y", "5", "fold_in(key, i)", "fold_in(key, 0)", 14, "5", None, "14, line 5: the likeliest token is taken, or one draw is used for all tokens"),
        ("greedy ignored", "sample", "drawn", "is_greedy(tau)", "tau < 0", 14, "5", None, "14, line 5: sampling=τ is not used"),
        ("τ = ∞ not uniform", "tempered", "divisor", "is_greedy(tau)", "is_greedy(tau) | jnp.isinf(tau)", 14, "5", None, "14, line 5: sampling=τ is not used"),
        ("prompt in the result", "d_inference", "return", "x_y[..., l:]", "x_y[..., l - 1 : -1]", 14, "return", None, "14, line return: the last token of the prompt is returned, too"),
        ("no bos_token", "ed_inference", "1", "set(bos)", "set(0)", 15, "1", None, "15, line 1: it begins with token [0], not with bos_token"),
        ("stops early", "ed_inference", "x_hat", "l < l_max", "l < l_max - 1", 15, "3", None, "15, line 3: eos_token is written after 15 tokens, without being drawn"),
        ("column of the step before", "ed_inference.x_hat", "5", "l - 1", "l - 2", 15, "5", None, "15, line 6: sampling=column before"),
        ("one key for all draws", "ed_inference.x_hat", "6", "fold_in(key, l - 1)", "fold_in(key, 0)", 15, "6", None, "15, line 6: sampling=one draw"),
        ("token written too late", "ed_inference.x_hat", "7", "x_hat.at[..., l]", "x_hat.at[..., l + 1]", 15, "7", None, "15, line 6: sampling=late"),
    ),
    "layers.py": (
        ("layers reversed", "Lines._run", "X", "unroll=static.value.unroll)", "unroll=static.value.unroll, reverse=True)", 8, "5", None, "8, line 5: layer=reversed"),
        ("bias of W_f skipped", "Lines.projection", "return", "linear(theta.W_f, X, theta.b_f", "linear(theta.W_f, X, 0 * theta.b_f", 9, "10", None, "9, line 10: f_bias=none"),
        ("padding of the sequence attended", "Lines.mh_attention", "length", "self.length if is_own", "None if is_own", 11, "4", None, "4, line 5: mask=padding"),
        ("learned positions added to rotary ones", "Lines.at_positions", "X", "X if W_p_t is None else X + W_p_t", "X + 0.1 if W_p_t is None else X + W_p_t", 10, "2", "LLAMA", "10, line 2: 0.1 is added to it"),
        ("keys of another layer than the variant's", "Lines.mh_attention.by", "lent", "self.lent[line.keys_of]", "self.lent[max(self.lent)]", 4, "5", "GEMMA4_E", "4, line 4: kv_layer=before"),
        ("activation of the algorithm for the variant's", "Lines.mlp", "name", "line.activation or activation.__name__", "activation.__name__", 10, "8", "LLAMA", "10, line 8: activation=gelu"),
        ("norm of the embeddings dropped", "Lines.at_positions", "X", "self.layer_norm(X, theta.embedding_norm)", "X", 9, "2", "ALBERT", "6, line return: norm_here=missing"),
        ("bias of the projected embeddings dropped", "Lines.at_positions", "return", "theta.b_in", "None", 9, "2", "ALBERT", "9, line 2: in_bias=none"),
    ),
    "masks.py": (
        ("mask transposed", "StructuralMask.permits", "permitted", "permitted &= t_z <= t_x", "permitted &= t_x <= t_z", 4, "5", None, "4, line 5: mask=transposed"),
        ("mask without the token itself", "StructuralMask.permits", "permitted", "permitted &= t_z <= t_x", "permitted &= t_z < t_x", 4, "5", None, "4, line 5: mask=strict"),
    ),
    "model/attention.py": (
        ("keys not rotated", "Attention.read", "Q", "self.positions.rotate(K, t_z)", "K", 4, "4", "LLAMA", "4, line 2: rotates=q"),
        ("window off by one", "Attention.windowed", "mask", "self.window)", "self.window + 1)", 4, "5", "GEMMA2", "4, line 5: mask=window 6"),
        ("cap of the scores dropped", "_Steps.scores", "options", '"cap": self.line.cap', '"cap": None', 4, "5", "GEMMA2", "4, line 5: score_cap=none"),
        ("scale dropped", "Attention.read", "Q", "scaled(Q, self.scale * Q.shape[1] ** 0.5)", "Q", 4, "4", "GPT_NEO", "4, line return: scale=1/√d"),
        ("norms of queries and keys dropped", "Attention._normalized", "return", "norm.of_heads(A, gamma, self.heads_together)", "A", 4, "4", "QWEN3", "4, line 1: qk_norm=none"),
        ("norm of values dropped", "Attention.read", "V", "self.normalize_values.of_heads(V, None)", "V", 4, "return", "GEMMA4", "4, line 3: it is not divided by √v"),
        ("values that are keys behind their norm and positions", "Attention.read", "V", "of_heads(V, None)", "of_heads(self.positions.rotate(K, t_z) if self.keys_are_values else V, None)", 4, "return", "GEMMA4", "4, line return: keys_as_values=behind"),
        ("norm of what attention adds dropped", "Attention._computed", "V_tilde", "self.normalize_output(V_tilde, of_lines.norm_out)", "V_tilde", 10, "6", "GEMMA2", "6, line return: norm_here=missing"),
    ),
    "model/distances.py": (
        ("u left out", "ByDistance.scores", "return", "self.contents(Q, W)", "Q", 4, "4", "GOPHER", "4, line 4: distances=Transformer-XL 10000, no u"),
        ("distances reversed", "TransformerXL.keys", "r", "sinusoid(-distances,", "sinusoid(distances,", 4, "5", "GOPHER", "4, line 5: distances=Transformer-XL 10000, reversed"),
        ("u in place of v", "TransformerXL.queries", "return", "W.v.reshape", "W.u.reshape", 4, "5", "GOPHER", "4, line 5: distances=Transformer-XL 10000, u for v"),
        ("scores that grow with the distance", "ALiBi.keys", "return", "-jnp.asarray(slopes", "jnp.asarray(slopes", 4, "5", "BLOOM", "4, line 5: distances=ALiBi, reversed"),
        ("a bucket begins one distance later", "Distances.bucket", "farther", ">= jnp", "> jnp", 4, "5", "T5", "4, line 5: distances=T5 6 7, one later"),
    ),
    "model/embedding.py": (
        ("positions from 1", "Embedding.of_positions", "t", "self.first_position + t", "1 + t", 8, "2", None, "2, line return: position_index=t+1"),
        ("embedding not scaled", "Embedding.tokens", "return", "if self.scaled", "if False", 8, "2", "VASWANI", "8, line 2: embedding_scale=1"),
        ("factor of embeddings dropped", "Embedding.tokens", "scaled", "E * self.factor", "E", 10, "2", "GRANITE", "10, line 2: embedding_scale=1"),
        ("first position dropped", "Embedding.of_positions", "t", "self.first_position + t", "t", 2, "return", "OPT", "2, line return: position_index=t"),
        ("tied although W_u is given", "Unembedding.matrix", "W_u", "if theta.W_u is None else theta.W_u", "", 8, "return", None, "8, line return: unembed=W_eᵀ"),
        ("output bias skipped", "Unembedding.__call__", "return", "b_u=theta.b_u", "b_u=None", 7, "1", "BERT", "9, line return: u_bias=none"),
        ("cap of the logits dropped", "Unembedding.__call__", "return", "cap=self.cap", "cap=None", 7, "1", "GEMMA2", "10, line return: cap=none"),
        ("tied unembedding not scaled", "Unembedding.matrix", "return", "W_u * factor", "W_u", 7, "1", "T5", "8, line return: unembed_scale=1"),
        ("factor of the logits dropped", "Unembedding.matrix", "return", "W_u * factor", "1 * W_u", 7, "1", "COHERE2", "10, line return: unembed_scale=1"),
    ),
    "model/rg_lru.py": (
        ("new rows not scaled by √(1 − α²)", "RGLRU._read", "return", "jnp.where(begins, 1, _root(-jnp.expm1(2 * log_alpha))) * ", "", 10, "6", "RECURRENT_GEMMA", "10, line 6: lru_new=1"),
    ),
    "model/delta.py": (
        ("queries of the delta rule not scaled", "GatedDelta.rates", "return", "Q * self.d_key**-0.5", "Q", 10, "6", "QWEN3_NEXT", "10, line 6: delta_scale=1"),
    ),
    "model/mamba.py": (
        ("values not added to what the state gives", "Mamba2.output", "Y", "D * V.astype(O.dtype)", "0 * D * V.astype(O.dtype)", 10, "6", "GRANITE_HYBRID", "10, line 6: mamba_skip=none"),
        ("smallest Δ dropped", "Mamba2.rates", "delta", "self.delta_min", "0.0", 10, "6", "NEMOTRON_H", "10, line 6: delta_min=0"),
        ("factor of Δ dropped", "Mamba2.rates", "log_alpha", "scaled(jnp.tensordot(W.W_a, X, 1), self.factors[3])", "jnp.tensordot(W.W_a, X, 1)", 10, "6", "FALCON_H1", "10, line 6: queries, keys, values, Δ and gate of Mamba-2 are multiplied by 0.625, 0.4419417382415922, 0.3125, 1, 0.4419417382415922"),
        ("one norm of all rows for one of each group", "Mamba2.output", "Y", "of_heads(Y, None)", "of_heads(Y, None, True)", 10, "6", "NEMOTRON_H", "10, line 6: mamba_groups=all"),
    ),
    "model/parallel.py": (
        ("factor of a recurrence beside an attention dropped", "Parallel._added", "return", "scaled(O, c_2)", "O", 10, "6", "FALCON_H1", "10, line 6: attention and recurrence are multiplied by 0.9375, 1"),
    ),
    "model/layer_end.py": (
        ("scalar of a layer dropped", "LayerEnd.__call__", "return", "X * W.s.astype(X.dtype)", "X", 6, "2", "GEMMA4", "10, line 9: layer_scalar=1"),
        ("input of a layer dropped", "LayerEnd.__call__", "X", 'X + shard(self.norm(linear(W.W_o, Y), W.norm_out), "tokens")', "X", 6, "2", "GEMMA4_E", "10, line 9: layer_input=none"),
        ("embeddings of a layer not scaled", "LayerEnd.inputs", "own", "token_embedding(x, W.W_e) * d**0.5", "token_embedding(x, W.W_e)", 6, "2", "GEMMA4_E", "10, line 9: input_scale=1"),
    ),
    "model/short_convolution.py": (
        ("gate before a convolution dropped", "ShortConvolution._gated", "return", "linear(W.W_i, X, W.b_i) * linear(W.W_x, X, W.b_x)", "linear(W.W_x, X, W.b_x)", 10, "6", "LFM2", "10, line 6: gate_before=none"),
    ),
    "model/indexer.py": (
        ("other rows of an indexer rotated", "Indexer._rotated", "return", "pairs=self.pairs", 'pairs="neighbors"', 10, "6", "DEEPSEEK_V32", "4, line 5: index_pairs=neighbours"),
    ),
    "model/experts.py": (
        ("shared expert not gated", "Experts.__call__", "Y", "jax.nn.sigmoid(linear(W.w_s[None], X_s)) * shared", "shared", 10, "8", "QWEN3_NEXT", "10, line 8: shared_gate=none"),
        ("weights of experts not multiplied by s", "Experts.__call__", "G", "G * as_columns(W.s, G)", "G", 6, "2", "GEMMA4_MOE", "10, line 8: expert_scale=1"),
        ("what a router reads not divided by √d_e", "Experts.__call__", "X_r", "scaled(X_r, len(X) ** -0.5)", "X_r", 6, "2", "GEMMA4_MOE", "10, line 8: router_scale=1"),
        ("weights of experts not renormalized", "Experts.weights", "G", "G / jnp.where(total == 0, 1, total)", "G", 10, "8", "MIXTRAL", "10, line 8: a token's 2 experts are those with the largest scores, weights are the softmax of the scores, not divided by their sum"),
    ),
    "model/mlp.py": (
        ("gate and MLP exchanged", "MLP.hidden", "return", "activate(activation, G) * U", "G * activate(activation, U)", 10, "8", "LLAMA", "10, line 8: gate=f(U)G"),
        ("factor of what a gate multiplies dropped", "MLP.hidden", "U", "scaled(U, self.factors[1])", "U", 10, "8", "FALCON_H1", "10, line 8: gate and MLP are multiplied by 0.8838834764831844, 1"),
        ("α_p of xIELU for α_n", "XIELU.hidden", "return", "W.alpha_n", "W.alpha_p", 10, "8", "APERTUS", "10, line 8: xielu=p"),
        ("norm of what the MLP adds dropped", "MLP.__call__", "return", "norm(Y, W.norm_out)", "Y", 10, "8", "GEMMA2", "6, line return: norm_here=missing"),
    ),
    "model/norm.py": (
        ("γ for γ + 1", "RMSNorm.__call__", "gamma", "norm.gamma + self.offset", "norm.gamma", 6, "return", "GEMMA2", "6, line return: norm_gamma=γ"),
        ("a norm of each head for one of all", "RMSNorm.of_heads", "return", "(lambda Q_h: self(Q_h, LayerNormParams(gamma, None)))(each)", "(lambda q, g: self(q, LayerNormParams(g, None)))(Q, gamma.reshape(len(Q), -1))", 4, "4", "OLMO2", "4, line 1: qk_norm=each"),
    ),
    "model/positions.py": (
        ("frequencies of the next pair", "Rotary.rotate", "frequencies", "np.arange(0, d, 2,", "np.arange(2, d + 2, 2,", 4, "4", "LLAMA", "4, line 1: rotation=halves 20 2(i+1)/d"),
        ("sines and cosines of a rotation exchanged", "Rotary.rotate", "cos", "(of.cos, of.sin)", "(of.sin, of.cos)", 4, "4", "LLAMA", "4, line 1: rotation=halves 20 2i/d, sin for cos"),
        ("pairs turned that should stay", "Rotary.rotate", "if", "self.of_all", "False", 4, "4", "GEMMA4", "4, line 1: rotation_scaling=none"),
        ("all rows rotated", "Rotary.rows", "d", "d_attn * self.share", "d_attn", 4, "4", "NEOX", "4, line 1: rotation_share=1"),
    ),
    "model/variant.py": (
        ("turns counted from 1", "Variant.by_attention", "turn", "[l %", "[(l + 1) %", 4, "4", "GEMMA2", "4, line 1: turns=next"),
    ),
    "notation.py": (
        ("mask_token is another", "mask_token", "return", "return N_V - 3", "return N_V - 4", 12, "5", None, "12, line 5: masked tokens are replaced by token 15, not mask_token"),
        ("eos_token is another", "eos_token", "return", "return N_V - 1", "return N_V - 3", 15, "3", None, "15, line 3: it ends at token 16, not at eos_token"),
    ),
    "ops/activation.py": (
        ("GELU approximated", "", "_FUNCTIONS", '"gelu": (gelu,', '"gelu": (gelu_tanh,', 9, "7", None, "9, line 7: activation=gelu_tanh"),
        ("ReLU for GELU", "", "_FUNCTIONS", '"gelu": (gelu,', '"gelu": (relu,', 9, "7", None, "9, line 7: activation=relu"),
        ("ReLU for its square", "", "_FUNCTIONS", '"relu_squared": (relu_squared,', '"relu_squared": (relu,', 10, "8", "NANOCHAT", "10, line 8: activation=relu"),
        ("GELU for ReLU", "", "_FUNCTIONS", '"relu": (relu,', '"relu": (gelu,', 8, "7", None, "8, line 7: activation=gelu"),
        ("columns of −∞ are 0/0", "softmax", "return", "jnp.where(denominator == 0, 1, denominator)", "denominator", 4, "return", None, "4, line return: it is NaN where a token has nothing to attend to: a softmax of −∞ alone is 0/0; what follows cannot be checked"),
        ("softmax over the wrong axis", "softmax", "denominator", "numerator.sum(axis=0, keepdims=True)", "numerator.sum(axis=-1, keepdims=True)", 4, "return", None, "4, line return: numerators are divided by their sum over the queries t_x; Algorithm 10, line return: numerators are divided by their sum over the tokens t, not over the vocabulary"),
    ),
    "ops/attention/dispatch.py": (
        ("mask of the other polarity", "LazyScores.array.masked", "return", "jnp.where(Mask,", "jnp.where(~Mask,", 4, "5", None, "4, line 5: mask=future"),
        ("masked scores 0, not −∞", "LazyScores.array.masked", "return", "-jnp.inf", "0", 4, "5", None, "4, line 5: mask_fill=0"),
        ("attention weights ignored", "LazyScores.array.weighted", "return", "@ A)", "@ jnp.full_like(A, 1 / A.shape[0]))", 4, "return", None, "4, line return: values=mean"),
        ("heads share keys by h mod H_kv", "LazyScores.array", "K", "jnp.repeat(a, len(Q) // len(a), axis=0)", "jnp.concatenate([a] * (len(Q) // len(a)))", 4, "4", "LLAMA", "4, line 4: sharing=modulo"),
    ),
    "ops/attention/tiles.py": (
        ("softmax Jacobian without aᵀg", "Block.backward", "dS", "A * (g - delta)", "A * g", 11, "6", None, "4, line return: its derivative is as if the sum below the fraction is constant"),
    ),
    "ops/log_loss.py": (
        ("weights of the loss ignored", "log_loss", "weights", "jnp.where(takes_part, weights.astype(wide), 0)", "jnp.ones_like(weights)", 11, "5", None, "11, line 5: loss=wrapped, sum"),
    ),
    "ops/rotation.py": (
        ("rotated backwards", "_rotated", "return", "[U * cos - V * sin, U * sin + V * cos]", "[U * cos + V * sin, V * cos - U * sin]", 4, "4", "LLAMA", "4, line 1: rotation=halves 20 2i/d, backwards"),
        ("halves for neighbors", "_rotated", "shape", 'pairs == "neighbors"', 'pairs != "neighbors"', 4, "4", "LLAMA", "4, line 1: rotation=neighbours 20 2i/d"),
    ),
    "orders.py": (
        ("attention added twice where it is side by side", "_side_by_side", "8", "X + Y", "X + Y + Y", 10, "8", "NEOX", "10, line 8: side_by_side=2A+B"),
        ("one after the other for side by side", "_side_by_side", "6", "f.mh_attention", "X + f.mh_attention", 10, "6", "NEOX", "10, line 8: residual=2X"),
        ("the residual stream for the one norm", "_side_by_side", "7", "X_tilde if W.norm2", "X if W.norm2", 10, "7", "COHERE2", "10, line 8: reads=X"),
    ),
}
# fmt: on


def _said(row: str) -> str:
    """The sentence on a choice of the catalogue, such as "1, line return: token_index=x-1"; or the row itself."""
    where, _, scope = row.partition(": ")
    slot, _, name = scope.partition("=")
    return f"{where}: {choice(slot, name).text}" if slot in SLOTS else row


PLANTED: dict[str, Planted] = {
    name: Planted(
        Edit(f"algorithms/{file}", function, statement, old, new), algorithm, line, variant, f"Algorithm {_said(says)}"
    )
    for file, rows in _ROWS.items()
    for name, function, statement, old, new, algorithm, line, variant, says in rows
}
"""What is wrong → the bug."""
