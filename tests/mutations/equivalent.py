"""Generated edits that no test can notice, since they change nothing that is promised."""

__all__ = ["EQUIVALENT"]

EQUIVALENT: dict[str, str] = {
    "alg14_inference.py: ed_inference, 3: jnp.any(y != eos) & (l < l_max) → l < l_max": "what has ended gets only eos",
    "alg14_inference.py: ed_inference, 3: l < l_max → l <= l_max": "what is set beyond the end is dropped",
    "losses.py: e_token_losses, inside: 0 → (0) + 1": "of a row, only the shape is read",
    "model/attention.py: Attention.context, inside: -1 → (-1) + 1": "only queries, which are not read, are at t",
    "model/attention.py: Attention.context, inside: -1 → 1": "only queries, which are not read, are at t",
    "model/distances.py: Distances.bucket, inside: away < exact → away <= exact": "exact + farther is exact there",
    "model/distances.py: Distances.keys, inside: -1 → 1": "there are two axes",
    "model/positions.py: Rotary.rotate, inside: t.size <= 8192 → t.size < 8192": "says which library computes",
    "ops/attention/tiles.py: Scores.counted_from, inside: n - l_z → (l_z) - (n)": "counts from the end to the same place",
    "ops/linear.py: _backward_of_lookup, inside: n <= ONE_HOT_LIMIT → n < ONE_HOT_LIMIT": "says which of two ways computes",
}
"""Name of an edit → why."""
