"""Makes a plain function public: its arguments are checked against its contract, and it is compiled."""

import contextvars
import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import jax

from algorithms.machinery.contract import contract_of
from algorithms.machinery.explicit import with_automatic_axes

F = TypeVar("F", bound=Callable[..., Any])

_IN_A_BODY: contextvars.ContextVar[bool] = contextvars.ContextVar("_IN_A_BODY", default=False)
"""Whether the body of a public function is running; the public functions that it calls run as plain functions."""


def compiled(function: F) -> F:
    """Check a function's arguments against its signature, and compile it with ``jax.jit``.

    Called from the body of another public function, it runs as the plain function, without checks or compilation.
    """
    contract, signature = contract_of(function), inspect.signature(function)

    @functools.wraps(function)
    def checked(*args, **kwargs):
        contract.check(*args, **kwargs)
        token = _IN_A_BODY.set(True)
        try:
            return with_automatic_axes(function, signature, args, kwargs)
        finally:
            _IN_A_BODY.reset(token)

    jitted: Any = jax.jit(checked, static_argnames=contract.static)

    @functools.wraps(function)
    def public(*args, **kwargs):
        if _IN_A_BODY.get():
            return function(*args, **kwargs)
        if contract.check_values is not None:
            contract.check_values(*args, **kwargs)
        try:
            return jitted(*args, **kwargs)
        except (TypeError, ValueError) as error:
            # inside jax.jit all values are tracers: check again, so that the message shows the caller's values
            problem = _raised_by(contract.check, args, kwargs)
            if problem is None and "forward-mode" in str(error) and "custom_vjp" in str(error):
                problem = TypeError(
                    f"{function.__name__}: forward-mode differentiation (jax.jvp, jax.jacfwd, jax.linearize) of a "
                    'backward pass derived by hand, which has reverse mode only; give implementation="paper", which '
                    "JAX differentiates itself, to any order"
                )
            if problem is None:
                raise
            raise problem from None

    for method in ("lower", "trace", "eval_shape", "clear_cache", "_cache_size"):
        setattr(public, method, getattr(jitted, method))
    return public  # pyright: ignore[reportReturnType]


def _raised_by(check: Callable[..., None], args: Any, kwargs: Any) -> Exception | None:
    try:
        check(*args, **kwargs)
    except (TypeError, ValueError) as error:
        return error
    return None
