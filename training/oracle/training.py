"""Algorithms 11 to 13: the losses, their gradients by complex steps, and stochastic gradient descent.

Of a loss, which is in nats: `z`, `x`: context and primary sequence, with bos_token and eos_token; `x_masked`: the
paper's x tilde, x with some tokens replaced by mask_token; `theta`: parameters of the transformer, with lists for heads
and layers. Of training, which returns theta_hat: `z`, `x`: N_data such sequences; `theta`: initial parameters;
`N_epochs`: passes over the data; `eta`: learning rate.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from .components import Array, Tokens
from .parameters import flatten, rebuild
from .transformers import d_transformer, e_transformer, ed_transformer

STEP = 1e-30  # its square, the relative error of a complex step, is far below the rounding of float64


def ed_loss(z: Tokens, x: Tokens, theta: Any) -> Any:
    """Return the loss in lines 3 to 5 of Algorithm 11, summed over the positions."""
    l = len(x)  # line 3
    P = ed_transformer(z, x, theta)  # line 4
    loss: Any = -sum(np.log(P[x[t + 1], t]) for t in range(l - 1))  # line 5
    return loss


def e_loss(x: Tokens, x_masked: Tokens, theta: Any) -> Any:
    """Return the loss in lines 7 to 9 of Algorithm 12, summed over the masked positions; 0 if no token is masked."""
    mask_token = theta.W_e.shape[1] - 3
    l = len(x)
    T_tilde = [t for t in range(l) if x_masked[t] == mask_token]  # line 7
    P = e_transformer(x_masked, theta)  # line 8
    loss: Any = -sum(np.log(P[x[t], t]) for t in T_tilde)  # line 9
    return loss


def d_loss(x: Tokens, theta: Any, further: Callable[[Tokens, Any], Any] | None = None) -> Any:
    """Return the loss in lines 3 to 5 of Algorithm 13, summed over the positions, plus a further loss."""
    l = len(x)  # line 3
    P = d_transformer(x, theta)  # line 4
    loss: Any = -sum(np.log(P[x[t + 1], t]) for t in range(l - 1))  # line 5
    return loss if further is None else loss + further(x, theta)


def complex_step_gradient(loss: Callable[[Any], Any], theta: Any) -> Any:
    """Return the gradient of a loss, one component at a time: Im loss(theta + i h) / h for a tiny h.

    No difference is taken, hence nothing cancels, and each component is exact to rounding.

    `loss`: real analytic function of the parameters. Result: Parameters of theta's structure, float64.
    """
    point = {path: np.array(W, dtype=np.complex128) for path, W in flatten(theta).items()}
    theta_complex = rebuild(theta, point)
    gradient = {path: np.zeros(W.shape) for path, W in point.items()}
    for path, W in point.items():
        for index in np.ndindex(W.shape):
            component = W[index]
            W[index] = component + 1j * STEP
            gradient[path][index] = np.imag(loss(theta_complex)) / STEP
            W[index] = component
    return rebuild(theta, gradient)


def descend(loss: Callable[[Any], Any], theta: Any, eta: float) -> Any:
    """Return theta - eta * (gradient of the loss at theta), new parameters of theta's structure."""
    loss(theta)  # whose lines can be observed once, and not for each component of the gradient
    gradient: dict[str, Array] = flatten(complex_step_gradient(loss, theta))
    return rebuild(theta, {path: W - eta * gradient[path] for path, W in flatten(theta).items()})


def ed_training(z: Sequence[Tokens], x: Sequence[Tokens], theta: Any, N_epochs: int, eta: float) -> Any:
    """Return Algorithm 11: training of the encoder-decoder transformer, one sequence pair per step."""
    N_data = len(x)
    for _ in range(N_epochs):  # line 1
        for n in range(N_data):  # line 2
            loss = partial(ed_loss, z[n], x[n])
            theta = descend(loss, theta, eta)  # line 6
    theta_hat: Any = theta  # return
    return theta_hat


def e_training(
    x: Sequence[Tokens],
    theta: Any,
    N_epochs: int,
    eta: float,
    masked: Sequence[Sequence[Sequence[bool] | Array]],
    p: Sequence[Sequence[float]] | None = None,
) -> Any:
    """Return Algorithm 12: training of the encoder-only transformer, with the masking already drawn.

    `masked`: masked[i][n][t] says if, in epoch i, token t of sequence n is replaced by mask_token; `p`: the drawn
    probabilities p[i][n] of that, by which losses are divided (Nie et al. 2025).
    """
    N_data = len(x)
    mask_token = theta.W_e.shape[1] - 3
    for i in range(N_epochs):  # line 1
        for n in range(N_data):  # line 2
            l = len(x[n])  # line 3
            x_tilde = [mask_token if masked[i][n][t] else x[n][t] for t in range(l)]  # lines 4-6
            loss = partial(e_loss, x[n], x_tilde)
            theta = descend(loss, theta, eta if p is None else eta / p[i][n])  # line 10
    theta_hat: Any = theta  # return
    return theta_hat


def d_training(
    x: Sequence[Tokens], theta: Any, N_epochs: int, eta: float, further: Callable[[Tokens, Any], Any] | None = None
) -> Any:
    """Return Algorithm 13: training of the decoder-only transformer, one sequence per step.

    `further`: is added to the loss, such as that of a head for the token after the next.
    """
    N_data = len(x)
    for _ in range(N_epochs):  # line 1
        for n in range(N_data):  # line 2
            loss = partial(d_loss, x[n], further=further)
            theta = descend(loss, theta, eta)  # line 6
    theta_hat: Any = theta  # return
    return theta_hat
