"""Algorithms 11 to 15 as printed: training and inference."""

from typing import Any

import numpy as np

from .pseudocode import Algorithm, Also, Line, Locals
from .values import plain

__all__ = ["TRAINING_AND_INFERENCE"]


def _softmax(A: np.ndarray) -> np.ndarray:
    """The softmax of each column."""
    with np.errstate(invalid="ignore"):  # a wrong edit may make all of a column −∞
        numerator = np.exp(A - A.max(axis=0))
    return numerator / numerator.sum(axis=0)


def _prediction(X: Any, names: Locals) -> np.ndarray:
    """P = softmax(W_u X), which the code leaves to the next line, from the X that its line ends with; capped as
    Gemma 2's logits are.
    """
    theta, cap = names["theta"], names["theta"].variant.unembedding.cap
    W_u = plain(theta.W_e).T if theta.W_u is None else plain(theta.W_u)
    Y = W_u @ plain(X)
    return _softmax(Y if cap is None else cap * np.tanh(Y / cap))


def _probabilities(log_p: Any, _: Locals) -> np.ndarray:
    """p, of which the code forms the logarithm."""
    return np.exp(plain(log_p))


def _masked_positions(T_tilde: Any, names: Locals) -> np.ndarray:
    """The set of masked positions, from an array that says of each whether it is."""
    return np.flatnonzero(plain(T_tilde))


def _length(_: Any, names: Locals) -> np.ndarray:
    return plain(names["l"])


def _translation(returned: Any, _: Locals) -> np.ndarray:
    """The translation without what pads it to l_max tokens."""
    x_hat, length = returned
    return plain(x_hat)[: int(plain(length))]


def _loops() -> tuple[Line, Line]:
    return (
        Line("1", "for i = 1..N_epochs do", r"\text{for } i = 1, 2, \dots, N_\text{epochs} \text{ do}", "i",
             kind="loop", label="epoch"),
        Line("2", "for n = 1..N_data do", r"\text{for } n = 1, 2, \dots, N_\text{data} \text{ do}", "n",
             kind="loop", label="sequence", depth=1),
    )  # fmt: skip


def _body(P: int, transformer: str, latex: str, positions: tuple[str, str], target: str) -> tuple[Line, ...]:
    """The end of a training step: from line P on the probabilities, the loss, the step downhill."""
    return (
        Line(
            str(P), f"P(θ) ← {transformer}", rf"P(\theta) \leftarrow {latex}", "P", "N_V l", depth=2, code=_prediction
        ),
        Line(
            str(P + 1),
            f"loss(θ) = −Σ_{{{positions[0]}}} log P(θ)[{target}, t]",
            rf"\text{{loss}}(\theta) = -{positions[1]} \log P(\theta)[{target}, t]",
            "loss",
            depth=2,
        ),
        Line(
            str(P + 2),
            "θ ← θ − η·∇loss(θ)",
            r"\theta \leftarrow \theta - \eta \cdot \nabla \text{loss}(\theta)",
            "theta",
            "θ",
            depth=2,
            also=(Also("gradient", "θ", ("complex_step_gradient", None), "g"),),
        ),
    )


def _first_length() -> Line:
    return Line("3", "ℓ ← length(x_n)", r"\ell \leftarrow \text{length}(x_n)", "l", depth=2, code=_length)


_RETURN = Line("return", "return θ̂ = θ", r"\text{return } \hat{\theta} = \theta", "theta_hat", "θ")
_NEXT = ("t=1..ℓ−1", r"\sum_{t=1}^{\ell-1}")
_TRAINED = ("Output", r"\hat{\theta} \text{, the trained parameters}")

ED_TRAINING = Algorithm(
    11,
    "EDTraining",
    "θ̂ ← EDTraining(z_{1:N_data}, x_{1:N_data}, θ)",
    r"\hat{\theta} \leftarrow \text{EDTraining}(z_{1:N_\text{data}}, x_{1:N_\text{data}}, \theta)",
    (
        (
            "Input",
            r"\{(z_n, x_n)\}_{n=1}^{N_\text{data}} \text{, a dataset of sequence pairs; } \theta \text{, initial parameters}",
        ),
        _TRAINED,
        ("Hyperparameters", r"N_\text{epochs} \in \mathbb{N},\ \eta \in (0, \infty)"),
    ),
    (
        *_loops(),
        _first_length(),
        *_body(4, "EDTransformer(z_n, x_n | θ)", r"\text{EDTransformer}(z_n, x_n \mid \theta)", _NEXT, "x_n[t+1]"),
        _RETURN,
    ),
)

E_TRAINING = Algorithm(
    12,
    "ETraining",
    "θ̂ ← ETraining(x_{1:N_data}, θ)",
    r"\hat{\theta} \leftarrow \text{ETraining}(x_{1:N_\text{data}}, \theta)",
    (
        ("Input", r"\{x_n\}_{n=1}^{N_\text{data}} \text{, a dataset of sequences; } \theta \text{, initial parameters}"),
        _TRAINED,
        ("Hyperparameters", r"N_\text{epochs} \in \mathbb{N},\ \eta \in (0, \infty),\ p_\text{mask} \in (0, 1)"),
    ),
    (
        *_loops(),
        _first_length(),
        Line("4", "for t = 1..ℓ do", r"\text{for } t = 1, 2, \dots, \ell \text{ do}", "t", kind="loop", label="token",
             depth=2, of="5"),
        Line(
            "5",
            "x̃_n[t] ← mask_token or x_n[t], randomly with probability p_mask or 1 − p_mask",
            r"\tilde{x}_n[t] \leftarrow \text{mask\_token or } x_n[t] \text{ randomly with probability }"
            r" p_\text{mask} \text{ or } 1 - p_\text{mask}",
            "x_tilde",
            "l",
            depth=3,
            product=True,
        ),
        Line("6", "end", r"\text{end}", "x_tilde", "l", kind="end", depth=2, of="5"),
        Line(
            "7",
            "T̃ ← {t ∈ [ℓ] : x̃_n[t] = mask_token}",
            r"\tilde{T} \leftarrow \{t \in [\ell] : \tilde{x}_n[t] = \text{mask\_token}\}",
            "T_tilde",
            "|T̃|",
            depth=2,
            code=_masked_positions,
        ),
        *_body(8, "ETransformer(x̃_n | θ)", r"\text{ETransformer}(\tilde{x}_n \mid \theta)",
               ("t∈T̃", r"\sum_{t \in \tilde{T}}"), "x_n[t]"),
        _RETURN,
    ),
)  # fmt: skip

D_TRAINING = Algorithm(
    13,
    "DTraining",
    "θ̂ ← DTraining(x_{1:N_data}, θ)",
    r"\hat{\theta} \leftarrow \text{DTraining}(x_{1:N_\text{data}}, \theta)",
    (
        (
            "Input",
            r"\{x_n\}_{n=1}^{N_\text{data}} \text{, a dataset of sequences; } \theta \text{, initial parameters}",
        ),
        _TRAINED,
        ("Hyperparameters", r"N_\text{epochs} \in \mathbb{N},\ \eta \in (0, \infty)"),
    ),
    (
        *_loops(),
        _first_length(),
        *_body(4, "DTransformer(x_n | θ)", r"\text{DTransformer}(x_n \mid \theta)", _NEXT, "x_n[t+1]"),
        _RETURN,
    ),
)


def _sample(number: str) -> Line:
    return Line(
        number,
        "sample a token y from q ∝ p^{1/τ}",
        r"\text{sample a token } y \text{ from } q \propto p^{1/\tau}",
        "y",
        depth=1,
        also=(Also("q", "N_V", "q", ("draw", "log_q"), finish=_softmax, greedy=False),),
    )


D_INFERENCE = Algorithm(
    14,
    "DInference",
    "y ← DInference(x, θ̂)",
    r"y \leftarrow \text{DInference}(x, \hat{\theta})",
    (
        ("Input", r"x \in V^{*} \text{, a prompt; } \hat{\theta} \text{, trained parameters}"),
        ("Output", r"y \in V^{*} \text{, the transformer's continuation of the prompt}"),
        ("Hyperparameters", r"\ell_\text{gen} \in \mathbb{N},\ \tau \in (0, \infty)"),
    ),
    (
        Line("1", "ℓ ← length(x)", r"\ell \leftarrow \text{length}(x)", "l"),
        Line("2", "for i = 1..ℓ_gen do", r"\text{for } i = 1, 2, \dots, \ell_\text{gen} \text{ do}", "i", kind="loop",
             label="step"),
        Line("3", "P ← DTransformer(x | θ̂)", r"P \leftarrow \text{DTransformer}(x \mid \hat{\theta})", "P", "N_V l",
             depth=1, code=_prediction),
        Line("4", "p ← P[:, ℓ+i−1]", r"p \leftarrow P[:, \ell + i - 1]", "p", "N_V", depth=1, code=_probabilities),
        _sample("5"),
        Line("6", "x ← [x, y]", r"x \leftarrow [x, y]", "x", "l", depth=1),
        Line("return", "return y = x[ℓ+1 : ℓ+ℓ_gen]", r"\text{return } y = x[\ell + 1 : \ell + \ell_\text{gen}]", "y",
             "l_gen"),
    ),
)  # fmt: skip

ED_INFERENCE = Algorithm(
    15,
    "EDInference",
    "x̂ ← EDInference(z, θ̂)",
    r"\hat{x} \leftarrow \text{EDInference}(z, \hat{\theta})",
    (
        ("Input", r"z \in V^{*} \text{, a sequence to be translated, say; } \hat{\theta} \text{, trained parameters}"),
        ("Output", r"\hat{x} \in V^{*} \text{, the transformer's translation}"),
        ("Hyperparameters", r"\tau \in (0, \infty)"),
    ),
    (
        Line("1", "x̂ ← [bos_token]", r"\hat{x} \leftarrow [\text{bos\_token}]", "x_hat", "l"),
        Line("2", "y ← 0", r"y \leftarrow 0", "y"),
        Line("3", "while y ≠ eos_token do", r"\text{while } y \ne \text{eos\_token do}", "y", kind="loop", label="step"),
        Line("4", "P ← EDTransformer(z, x̂ | θ̂)", r"P \leftarrow \text{EDTransformer}(z, \hat{x} \mid \hat{\theta})",
             "P", "N_V l", depth=1, code=_prediction),
        Line("5", "p ← P[:, length(x̂)]", r"p \leftarrow P[:, \text{length}(\hat{x})]", "p", "N_V", depth=1,
             code=_probabilities),
        _sample("6"),
        Line("7", "x̂ ← [x̂, y]", r"\hat{x} \leftarrow [\hat{x}, y]", "x_hat", "l", depth=1),
        Line("return", "return x̂", r"\text{return } \hat{x}", "x_hat", "l", code=_translation),
    ),
)  # fmt: skip

TRAINING_AND_INFERENCE = (ED_TRAINING, E_TRAINING, D_TRAINING, D_INFERENCE, ED_INFERENCE)
