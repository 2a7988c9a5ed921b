"""Wrong edits of Algorithms 14 and 15 and of initial parameters."""

from .mutation import Mutation

__all__ = ["INFERENCE_MUTATIONS"]

T = "tests/algorithms"
INFERENCE = (f"{T}/test_inference.py",)
HALF_PRECISION = (f"{T}/test_narrow_types.py::test_what_is_drawn_in_half_precision_follows_its_distribution",)
INITIALIZATION = (f"{T}/test_initialization.py",)

INFERENCE_MUTATIONS: dict[str, Mutation] = {
    # Inference: Algorithms 14 and 15
    "column off by one": Mutation(
        "algorithms/alg14_inference.py", "d_inference.x_y", "4", "l + i - 1", "l + i - 2", 14, "4", INFERENCE
    ),
    "temperature inverted": Mutation(
        "algorithms/alg14_inference.py", "tempered", "log_q", "/ (divisor", "* (divisor", 14, "5", INFERENCE
    ),
    "one key for all tokens": Mutation(
        "algorithms/alg14_inference.py",
        "d_inference.x_y",
        "5",
        "fold_in(key, i)",
        "fold_in(key, 0)",
        14,
        "5",
        INFERENCE,
    ),
    "greedy ignored": Mutation(
        "algorithms/alg14_inference.py", "sample", "return", "is_greedy(tau)", "tau < 0", 14, "5", INFERENCE
    ),
    "τ = ∞ not uniform": Mutation(
        "algorithms/alg14_inference.py",
        "tempered",
        "divisor",
        "is_greedy(tau)",
        "is_greedy(tau) | jnp.isinf(tau)",
        14,
        "5",
        INFERENCE,
    ),
    "τ = ∞ draws what is impossible": Mutation(
        "algorithms/alg14_inference.py",
        "tempered",
        "return",
        "jnp.where(impossible, -jnp.inf, log_q)",
        "log_q",
        14,
        None,
        INFERENCE,
    ),
    "keys of XLA's generator side by side": Mutation(
        "algorithms/ops/dropout.py",
        "by_own_key.drawn",
        "return",
        "draw if is_default else one_after_another",
        "draw",
        14,
        None,
        INFERENCE,
    ),
    "drawn in the dtype of the parameters": Mutation(
        "algorithms/alg14_inference.py",
        "sample",
        "log_p",
        "log_p.astype(accumulation_dtype(log_p.dtype))",
        "log_p.astype(jnp.bfloat16)",
        14,
        None,
        HALF_PRECISION,
    ),
    "prompt in the result": Mutation(
        "algorithms/alg14_inference.py",
        "d_inference",
        "return",
        "x_y[..., l:]",
        "x_y[..., l - 1 : -1]",
        14,
        "return",
        INFERENCE,
    ),
    "no bos_token": Mutation(
        "algorithms/alg14_inference.py", "ed_inference", "1", "set(bos)", "set(0)", 15, "1", INFERENCE
    ),
    "padded with another token": Mutation(
        "algorithms/alg14_inference.py", "ed_inference", "1", "l_max), eos", "l_max), 0", 15, None, INFERENCE
    ),
    "eos_token is another": Mutation(
        "algorithms/notation.py", "eos_token", "return", "return N_V - 1", "return N_V - 3", 15, "3", INFERENCE
    ),
    "stops early": Mutation(
        "algorithms/alg14_inference.py", "ed_inference", "x_hat", "l < l_max", "l < l_max - 1", 15, "3", INFERENCE
    ),
    "column of the step before": Mutation(
        "algorithms/alg14_inference.py", "ed_inference.x_hat", "5", "l - 1", "l - 2", 15, "5", INFERENCE
    ),
    "one key for all draws": Mutation(
        "algorithms/alg14_inference.py",
        "ed_inference.x_hat",
        "6",
        "fold_in(key, l - 1)",
        "fold_in(key, 0)",
        15,
        "6",
        INFERENCE,
    ),
    "token written too late": Mutation(
        "algorithms/alg14_inference.py",
        "ed_inference.x_hat",
        "7",
        "x_hat.at[..., l]",
        "x_hat.at[..., l + 1]",
        15,
        "7",
        INFERENCE,
    ),
    # Initial parameters
    "one key for all matrices": Mutation(
        "algorithms/model/initialization.py", "_initial.array", "return", "next(drawn)", "0", 10, None, INITIALIZATION
    ),
    "Glorot by columns only": Mutation(
        "algorithms/model/initialization.py",
        "_glorot",
        "bound",
        "(6 / (shape[-2] + shape[-1]))",
        "(6 / shape[-1])",
        10,
        None,
        INITIALIZATION,
    ),
    "residual writes not scaled": Mutation(
        "algorithms/model/initialization.py",
        "_gpt2",
        "to_stream",
        "0.02 / writes**0.5",
        "0.02",
        10,
        None,
        INITIALIZATION,
    ),
}
"""What was changed → the edit."""
