"""Wrong edits of the lines that published models change, none of which the paper's own lines pass through.

Where a variant is named, its cross-check must locate the edit.
"""

from .mutation import Mutation

__all__ = ["FAMILY_MUTATIONS"]

T = "tests/algorithms/test_family.py"
LLAMA = (f"{T}::test_the_lines_are_the_oracles[LLAMA]",)
GEMMA2 = (f"{T}::test_the_lines_are_the_oracles[GEMMA2]",)
GPT_NEO = (f"{T}::test_the_lines_are_the_oracles[GPT_NEO]",)
QWEN3 = (f"{T}::test_the_lines_are_the_oracles[QWEN3]",)
OLMO2 = (f"{T}::test_the_lines_are_the_oracles[OLMO2]",)
NEOX = (f"{T}::test_the_lines_are_the_oracles[NEOX]",)
C = "tests/project/test_crosscheck_variants.py"
OPT, ALBERT, BART, T5 = (
    (f"{C}::test_every_line_of_a_variant_agrees[{name}]",) for name in ("OPT", "ALBERT", "BART", "T5")
)
SHARED = (f"{T}::test_the_lines_are_the_oracles[GPT3_SHARED]",)
SHARED_CACHE = (f"{T}::test_a_cache_generates_the_tokens_of_algorithm_14[GPT3_SHARED]",)
BACKWARD = (f"{T}::test_every_implementation_is_as_printed[dense-LLAMA]",)
CACHE = (f"{T}::test_a_cache_generates_the_tokens_of_algorithm_14[LLAMA]",)
GOPHER = (f"{T}::test_the_lines_are_the_oracles[GOPHER]",)
BLOOM = (f"{T}::test_the_lines_are_the_oracles[BLOOM]",)
GOPHER_CACHE = (f"{T}::test_a_cache_generates_the_tokens_of_algorithm_14[GOPHER]",)
DISTANCES_T = "tests/algorithms/test_distances.py"
SHIFT = (f"{DISTANCES_T}::test_the_shift_by_a_reshape_is_the_printed_index[7-5]",)
PACKED = (f"{DISTANCES_T}::test_packed_documents_are_the_documents_alone[blockwise-transformer_xl]",)
BOTH_WAYS = (f"{DISTANCES_T}::test_an_encoder_has_buckets_for_both_directions[dense]",)
DOCUMENTS = "tests/algorithms/test_documents.py"
ALONE = (f"{DOCUMENTS}::test_a_model_of_attention_alone_has_no_mlp[dense]",)
ALONE_CACHE = (f"{DOCUMENTS}::test_queries_and_keys_read_positions_from_the_cache_too",)
POST_NORM = (f"{DOCUMENTS}::test_the_blocks_are_the_documents[003-dense]",)
RING = ("tests/training/generation/test_rings.py::test_tokens_far_behind_the_window_are_algorithm_14s[one window]",)
PARTS = ("tests/training/generation/test_slots.py::test_parts_give_what_all_rows_give[4-None]",)
RING_IN_TURN = ("tests/training/generation/test_rings.py::test_what_reads_all_tokens_keeps_all_of_them",)

POSITIONS = "algorithms/model/positions.py"
ROTATION = "algorithms/ops/rotation.py"
ATTENTION = "algorithms/model/attention.py"
DECODING = "training/generation/decoding.py"
STATES = "training/generation/states.py"
SLOTS = "training/generation/slots.py"
CACHED = "training/generation/cache.py"

DISTANCES = "algorithms/model/distances.py"
BY_DISTANCE = "algorithms/ops/attention/distances.py"

FAMILY_MUTATIONS: dict[str, Mutation] = {
    "distances reversed": Mutation(
        DISTANCES, "TransformerXL.keys", "r", "sinusoid(-distances,", "sinusoid(distances,", 4, "5", GOPHER, "GOPHER"
    ),
    "u in place of v": Mutation(
        DISTANCES, "TransformerXL.queries", "return", "W.v.reshape", "W.u.reshape", 4, "5", GOPHER, "GOPHER"
    ),
    "u left out": Mutation(
        ATTENTION, "Attention.read", "Q", "self.positions.contents(Q, W)", "Q", 4, "4", GOPHER, "GOPHER"
    ),
    "scores that grow with the distance": Mutation(
        DISTANCES, "ALiBi.keys", "return", "-jnp.asarray(slopes", "jnp.asarray(slopes", 4, "5", BLOOM, "BLOOM"
    ),
    "slopes of twice as many heads begin with the second": Mutation(
        DISTANCES,
        "ALiBi.keys",
        "slopes",
        "range(1, 2 * (H - power), 2)",
        "range(2, 2 * (H - power) + 1, 2)",
        10,
        None,
        BLOOM,
    ),
    "an encoder with the buckets of a decoder": Mutation(
        "algorithms/layers.py",
        "",
        "OWN",
        'Own("gelu", ("norm_last", "norm_first", "no_norm"), True)',
        'Own("gelu", ("norm_last", "norm_first", "no_norm"), False)',
        9,
        None,
        BOTH_WAYS,
    ),
    "a bucket begins one distance later": Mutation(
        DISTANCES, "Distances.bucket", "farther", ">= jnp", "> jnp", 4, "5", BOTH_WAYS, "T5"
    ),
    "shift off by one": Mutation(
        BY_DISTANCE, "scores_by_distance", "sheared", "[l_x - 1 : l_x * n - 1]", "[l_x : l_x * n]", 4, None, SHIFT
    ),
    "gradient by the distances not shifted back": Mutation(
        BY_DISTANCE, "scores_by_distance_backward", "dB", "(l_x - 1, 1)", "(1, l_x - 1)", 4, None, SHIFT
    ),
    "distances of another block": Mutation(
        "algorithms/ops/attention/blockwise.py",
        "_Blocks.first_distance",
        "return",
        "(self.n_x - 1 - i)",
        "(self.n_x - i)",
        4,
        None,
        PACKED,
    ),
    "keys without positions": Mutation(ATTENTION, "Attention.read", "Q", "K + k", "K", 10, None, ALONE),
    "positions of queries and keys not in the cache": Mutation(
        CACHED,
        "Projections.products",
        "return",
        "tuple(found[:2])",
        "tuple(0 * Y for Y in found[:2])",
        14,
        None,
        ALONE_CACHE,
    ),
    "norms after the additions left out": Mutation(
        "algorithms/orders.py", "_norm_last", "X", "f.layer_norm(X, W.norm1)", "X", 10, None, POST_NORM
    ),
    "prompts one slot too early in the cache": Mutation(
        STATES,
        "prompt_tokens",
        "return",
        "first - lengths + 1",
        "first - lengths",
        14,
        None,
        CACHE + GOPHER_CACHE + RING,
    ),
    "a ring of one row too few": Mutation(
        STATES, "widest_window", "return", "max(windows)", "max(windows) - 1", 14, None, RING
    ),
    "a ring written at another row": Mutation(
        CACHED,
        "KeyValues.stored.store",
        "return",
        "slot % cache.shape[1]",
        "(slot + 1) % cache.shape[1]",
        14,
        None,
        RING,
    ),
    "a part of a cache read a token too late": Mutation(
        SLOTS, "Slots.attend", "is_read", "start <= slot", "start < slot", 14, None, PARTS
    ),
    "frequencies of the next pair": Mutation(
        POSITIONS,
        "Rotary.__call__",
        "frequencies",
        "np.arange(0, d, 2,",
        "np.arange(2, d + 2, 2,",
        4,
        "4",
        LLAMA,
        "LLAMA",
    ),
    "rotated backwards": Mutation(
        ROTATION,
        "_rotated",
        "return",
        "[U * cos - V * sin, U * sin + V * cos]",
        "[U * cos + V * sin, V * cos - U * sin]",
        4,
        "4",
        LLAMA,
        "LLAMA",
    ),
    "sines and cosines of a rotation exchanged": Mutation(
        POSITIONS, "Rotary.__call__", "cos", "(of.cos, of.sin)", "(of.sin, of.cos)", 4, "4", LLAMA, "LLAMA"
    ),
    "gradient not rotated back": Mutation(ROTATION, "_backward", "return", "-sin", "sin", 10, None, BACKWARD),
    "halves for neighbors": Mutation(
        ROTATION, "_rotated", "shape", 'pairs == "halves"', 'pairs != "halves"', 4, "4", LLAMA, "LLAMA"
    ),
    "keys not rotated": Mutation(
        ATTENTION,
        "Attention.read",
        "Q",
        "self.positions(K, t_z, implementation)",
        "K",
        4,
        "4",
        LLAMA,
        "LLAMA",
    ),
    "new tokens one position too early": Mutation(
        DECODING, "_scores", "how", "positions=t", "positions=t - 1", 14, None, CACHE
    ),
    "gate and MLP exchanged": Mutation(
        "algorithms/model/mlp.py",
        "MLP.__call__",
        "hidden",
        "activate(f, G, implementation) * U",
        "G * activate(f, U, implementation)",
        10,
        "8",
        LLAMA,
        "LLAMA",
    ),
    "γ for γ + 1": Mutation(
        "algorithms/model/norm.py",
        "RMSNorm.__call__",
        "gamma",
        "norm.gamma + self.offset",
        "norm.gamma",
        6,
        "return",
        GEMMA2,
        "GEMMA2",
    ),
    "heads share keys by h mod H_kv": Mutation(
        "algorithms/ops/attention/dispatch.py",
        "_of_each",
        "K",
        "jnp.repeat(a, len(Q) // len(a), axis=0)",
        "jnp.concatenate([a] * (len(Q) // len(a)))",
        4,
        "4",
        LLAMA,
        "LLAMA",
    ),
    "window off by one": Mutation(
        ATTENTION, "Attention.windowed", "return", "self.window)", "self.window + 1)", 4, "5", GEMMA2, "GEMMA2"
    ),
    "turns counted from 1": Mutation(
        "algorithms/layers.py", "Lines.mh_attention", "turn", "[self.l %", "[(self.l + 1) %", 4, "4", GEMMA2, "GEMMA2"
    ),
    "cap of the scores dropped": Mutation(
        ATTENTION, "of_sequences", "options", '"cap": line.cap', '"cap": None', 4, "5", GEMMA2, "GEMMA2"
    ),
    "cap of the logits dropped": Mutation(
        "algorithms/model/unembedding.py",
        "Unembedding.__call__",
        "return",
        "cap=self.cap",
        "cap=None",
        7,
        "1",
        GEMMA2,
        "GEMMA2",
    ),
    "scale dropped": Mutation(
        ATTENTION,
        "Attention.read",
        "Q",
        "Q * (self.scale * Q.shape[1] ** 0.5)",
        "Q",
        4,
        "4",
        GPT_NEO,
        "GPT_NEO",
    ),
    "window of the cache off by one": Mutation(
        CACHED,
        "Step.attend",
        "permitted",
        "-line.window < self.distances",
        "-line.window <= self.distances",
        14,
        None,
        RING_IN_TURN,
    ),
    "RMSnorm's ε misplaced": Mutation(
        "algorithms/alg06_layer_norm.py",
        "rms_norm",
        "return",
        "jnp.sqrt(v + epsilon)",
        "(jnp.sqrt(v) + epsilon)",
        6,
        "return",
        LLAMA,
        "LLAMA",
    ),
    "square of the deviation from the mean for RMSnorm": Mutation(
        "algorithms/alg06_layer_norm.py",
        "rms_norm",
        "2",
        "jnp.square(e)",
        "jnp.square(e - e.mean(axis=0, keepdims=True))",
        6,
        "2",
        LLAMA,
        "LLAMA",
    ),
    "learned positions added to rotary ones": Mutation(
        "algorithms/layers.py",
        "Lines.at_positions",
        "X",
        "X if W_p_t is None else X + W_p_t",
        "X + 0.1 if W_p_t is None else X + W_p_t",
        10,
        "2",
        LLAMA,
        "LLAMA",
    ),
    "activation of the algorithm for the variant's": Mutation(
        "algorithms/layers.py",
        "lines_of",
        "activation",
        "(variant.mlp and variant.mlp.activation) or own.activation",
        "own.activation",
        10,
        "8",
        LLAMA,
        "LLAMA",
    ),
    "norms of queries and keys dropped": Mutation(
        ATTENTION,
        "Attention._normalized",
        "return",
        "norm.of_heads(Q, gamma, implementation)",
        "Q",
        4,
        "4",
        QWEN3,
        "QWEN3",
    ),
    "a norm of each head for one of all": Mutation(
        "algorithms/model/norm.py",
        "RMSNorm.of_heads",
        "return",
        "(lambda Q_h: self(Q_h, LayerNormParams(gamma, None), implementation))(each)",
        "(lambda q, g: self(q, LayerNormParams(g, None), implementation))(Q, gamma.reshape(len(Q), -1))",
        4,
        "4",
        OLMO2,
        "OLMO2",
    ),
    "norm of what attention adds dropped": Mutation(
        ATTENTION,
        "Attention.write",
        "return",
        "self.normalize_output(V_tilde, W.norm_out, implementation)",
        "V_tilde",
        10,
        "6",
        GEMMA2,
        "GEMMA2",
    ),
    "norm of what the MLP adds dropped": Mutation(
        "algorithms/model/mlp.py",
        "MLP.__call__",
        "return",
        "self.normalize_output(Y, W.norm_out, implementation)",
        "Y",
        10,
        "8",
        GEMMA2,
        "GEMMA2",
    ),
    "attention added twice where it is side by side": Mutation(
        "algorithms/orders.py", "_side_by_side", "8", "X + Y", "X + Y + Y", 10, "8", NEOX, "NEOX"
    ),
    "one after the other for side by side": Mutation(
        "algorithms/orders.py", "_side_by_side", "6", "f.mh_attention", "X + f.mh_attention", 10, "6", NEOX, "NEOX"
    ),
    "all rows rotated": Mutation(POSITIONS, "Rotary.rows", "d", "d_attn * self.share", "d_attn", 4, "4", NEOX, "NEOX"),
    "first position dropped": Mutation(
        "algorithms/model/embedding.py",
        "Embedding._learned",
        "return",
        "self.first_position + t",
        "t",
        2,
        "return",
        OPT,
        "OPT",
    ),
    "norm of the embeddings dropped": Mutation(
        "algorithms/layers.py",
        "Lines.at_positions",
        "X",
        "self.layer_norm(X, theta.embedding_norm)",
        "X",
        9,
        "2",
        ALBERT,
        "ALBERT",
    ),
    "bias of the projected embeddings dropped": Mutation(
        "algorithms/layers.py", "Lines.at_positions", "return", "theta.b_in", "None", 9, "2", ALBERT, "ALBERT"
    ),
    "parameters of the next layers that share theirs": Mutation(
        "algorithms/layers.py",
        "Lines._scan.turn",
        "theta_l",
        "l // shared",
        "(l + 1) // shared",
        10,
        None,
        SHARED,
    ),
    "layers that share parameters used once": Mutation(
        "algorithms/layers.py", "Lines._scan", "L", "shared * jax", "jax", 10, None, SHARED
    ),
    "parameters by turns in the cache": Mutation(
        "training/generation/layout.py",
        "_one_by_one",
        "return",
        "for layer in map(laid_out, layers) for _ in range(variant.shared_layers)",
        "for _ in range(variant.shared_layers) for layer in map(laid_out, layers)",
        14,
        None,
        SHARED_CACHE,
    ),
    "context embedded as the sequence": Mutation(
        "algorithms/alg08_ed_transformer.py",
        "of_context",
        "own",
        "theta.context is None",
        "True",
        2,
        "return",
        BART,
        "BART",
    ),
    "final norm of the encoder dropped": Mutation(
        "algorithms/alg08_ed_transformer.py",
        "ed_encoding",
        "9",
        "f.layer_norm(Z, theta.encoder_norm)",
        "Z",
        8,
        "9",
        T5,
        "T5",
    ),
    "tied unembedding not scaled": Mutation(
        "algorithms/model/unembedding.py",
        "Unembedding.matrix",
        "return",
        "W_u * W_u.shape[1] ** -0.5",
        "W_u",
        7,
        "1",
        T5,
        "T5",
    ),
}
"""What was changed → the edit."""
