"""Wrong edits of the lines that published models change, none of which the paper's own lines pass through."""

from .mutation import Mutation

__all__ = ["OF_FAMILY"]

T = "tests/algorithms/test_family.py"
LLAMA = (f"{T}::test_the_lines_are_the_oracles[LLAMA]",)
GEMMA2 = (f"{T}::test_the_lines_are_the_oracles[GEMMA2]",)
GPT_NEO = (f"{T}::test_the_lines_are_the_oracles[GPT_NEO]",)
BACKWARD = (f"{T}::test_every_implementation_is_as_printed[dense-LLAMA]",)
CACHE = (f"{T}::test_a_cache_generates_the_tokens_of_algorithm_14[LLAMA]",)
GOPHER = (f"{T}::test_the_lines_are_the_oracles[GOPHER]",)
BLOOM = (f"{T}::test_the_lines_are_the_oracles[BLOOM]",)
GOPHER_CACHE = (f"{T}::test_a_cache_generates_the_tokens_of_algorithm_14[GOPHER]",)
DISTANCES_T = "tests/algorithms/test_distances.py"
SHIFT = (f"{DISTANCES_T}::test_the_shift_by_a_reshape_is_the_printed_index[7-5]",)
PACKED = (f"{DISTANCES_T}::test_packed_documents_are_the_documents_alone[blockwise-transformer_xl]",)
BOTH_WAYS = (f"{DISTANCES_T}::test_an_encoder_has_buckets_for_both_directions[dense]",)
CACHE_IN_TURN = (f"{T}::test_a_cache_generates_the_tokens_of_algorithm_14[GEMMA2]",)

POSITIONS = "algorithms/model/positions.py"
ROTATION = "algorithms/ops/rotation.py"
ATTENTION = "algorithms/model/attention.py"
DECODING = "training/generation/decoding.py"
CACHED = "training/generation/cache.py"

DISTANCES = "algorithms/model/distances.py"
BY_DISTANCE = "algorithms/ops/attention/distances.py"

OF_FAMILY: dict[str, Mutation] = {
    "distances reversed": Mutation(
        DISTANCES, "TransformerXL.keys", "r", "sinusoid(-distances,", "sinusoid(distances,", 10, None, GOPHER
    ),
    "u in place of v": Mutation(
        DISTANCES, "TransformerXL.queries", "return", "W.v.reshape", "W.u.reshape", 10, None, GOPHER
    ),
    "u left out": Mutation(ATTENTION, "Attention.queries", "Q", "self.positions.contents(Q, W)", "Q", 10, None, GOPHER),
    "scores that grow with the distance": Mutation(
        DISTANCES, "ALiBi.keys", "return", "-jnp.asarray(slopes", "jnp.asarray(slopes", 10, None, BLOOM
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
        "algorithms/alg09_e_transformer.py",
        "e_encoding",
        "table",
        "both_ways=True",
        "both_ways=False",
        9,
        None,
        BOTH_WAYS,
    ),
    "a bucket begins one distance later": Mutation(
        DISTANCES, "Distances.bucket", "farther", ">= jnp", "> jnp", 9, None, BOTH_WAYS
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
    "distances counted in slots": Mutation(
        DECODING, "_scores", "distances", "t_of_slots - t[:, None]", "s - state.slot", 14, None, GOPHER_CACHE
    ),
    "frequencies of the next pair": Mutation(
        POSITIONS, "Rotary.__call__", "frequencies", "np.arange(0, d, 2,", "np.arange(2, d + 2, 2,", 10, None, LLAMA
    ),
    "rotated backwards": Mutation(
        ROTATION,
        "_rotated",
        "return",
        "[U * cos - V * sin, U * sin + V * cos]",
        "[U * cos + V * sin, V * cos - U * sin]",
        10,
        None,
        LLAMA,
    ),
    "sines and cosines of a rotation exchanged": Mutation(
        POSITIONS, "Rotary.__call__", "cos", "(jnp.cos, jnp.sin)", "(jnp.sin, jnp.cos)", 10, None, LLAMA
    ),
    "gradient not rotated back": Mutation(ROTATION, "_backward", "return", "-sin", "sin", 10, None, BACKWARD),
    "halves for neighbors": Mutation(
        ROTATION, "_rotated", "shape", 'pairs == "halves"', 'pairs != "halves"', 10, None, LLAMA
    ),
    "keys not rotated": Mutation(
        ATTENTION, "Attention.keys", "return", "self._placed(K, W.gamma_k, t, implementation)", "K", 10, None, LLAMA
    ),
    "keys not rotated in the cache": Mutation(
        CACHED, "mh_attention_cached", "cache", 'line.keys(K, W, t, "paper")', "K", 14, None, CACHE
    ),
    "gate and MLP exchanged": Mutation(
        "algorithms/model/mlp.py",
        "MLP.__call__",
        "hidden",
        "activate(f, linear(W.W_gate, X, W.b_gate, implementation), implementation) * U",
        "linear(W.W_gate, X, W.b_gate, implementation) * activate(f, U, implementation)",
        10,
        None,
        LLAMA,
    ),
    "γ for γ + 1": Mutation(
        "algorithms/model/norm.py",
        "RMSNorm.__call__",
        "gamma",
        "norm.gamma + self.offset",
        "norm.gamma",
        10,
        None,
        GEMMA2,
    ),
    "heads share keys by h mod H_kv": Mutation(
        "algorithms/ops/attention/dispatch.py",
        "_of_each",
        "K",
        "jnp.repeat(a, len(Q) // len(a), axis=0)",
        "jnp.concatenate([a] * (len(Q) // len(a)))",
        10,
        None,
        LLAMA,
    ),
    "window off by one": Mutation(
        ATTENTION, "Attention.windowed", "return", "self.window)", "self.window + 1)", 10, None, GEMMA2
    ),
    "turns counted from 1": Mutation(
        "algorithms/layers.py", "Lines.mh_attention", "turn", "[self.l %", "[(self.l + 1) %", 10, None, GEMMA2
    ),
    "cap of the scores dropped": Mutation(
        ATTENTION, "Attention.__call__", "hooks", "cap=self.cap", "cap=None", 10, None, GEMMA2
    ),
    "cap of the logits dropped": Mutation(
        "algorithms/model/unembedding.py",
        "Unembedding.__call__",
        "return",
        "cap=self.cap",
        "cap=None",
        10,
        None,
        GEMMA2,
    ),
    "scale dropped": Mutation(
        ATTENTION, "Attention.queries", "return", "Q * (self.scale * Q.shape[1] ** 0.5)", "Q", 10, None, GPT_NEO
    ),
    "window counted in slots": Mutation(
        DECODING,
        "_scores.attend",
        "within",
        "-line.window < distances",
        "state.slot - line.window < s",
        14,
        None,
        CACHE_IN_TURN,
    ),
}
"""What was changed → the edit."""
