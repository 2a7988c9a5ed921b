"""Algorithm 4 in NumPy with a mistake, and the glue with which the cross-check names it:

python scripts/crosscheck.py --algorithm 4 --of docs.examples.attention_numpy:observe
"""

import numpy as np

from training.foreign import record_numpy


def attention(p, x, z, mask):
    """Rows are tokens here, as in most code."""
    q = x @ p["q"].T + p["q_bias"]
    k = z @ p["k"].T + p["k_bias"]
    v = z @ p["v"].T + p["v_bias"]
    scores = np.where(mask, q @ k.T / np.sqrt(len(p["q"])), -np.inf)
    weights = np.exp(scores - scores.max(0))
    weights = weights / weights.sum(0)  # mistake: over the tokens that attend
    return weights @ v


def observe(case, dtype):
    """Run the function on the case's θ, X, Z and Mask, and record what NumPy computes."""
    theta = {name: W[0].astype(dtype) for name, W in case.theta.items()}  # of the only head
    p = {name: theta[f"W_{name}"] for name in "qkv"} | {f"{name}_bias": theta[f"b_{name}"] for name in "qkv"}
    X, Z = (case.inputs[name].astype(dtype).T for name in "XZ")
    return record_numpy(attention, p, X, Z, np.asarray(case.inputs["Mask"]).T)
