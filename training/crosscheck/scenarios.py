"""Scenarios: for each algorithm, inputs and parameters, the shipped function and the oracle."""

import dataclasses
import functools
import importlib
import math
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from algorithms.model.variants import PAPER
from training import oracle
from training.oracle import family

from .models import drawn
from .records import OracleRecord

__all__ = ["Run", "Scenarios", "masked_tokens", "sampler"]

SIZES = {
    "N_V": 13, "l_max": 11, "l_x": 5, "l_z": 7, "T": 4, "L": 3, "L_enc": 2, "L_dec": 3, "H": 2, "d_e": 6, "d_x": 3,
    "d_z": 8, "d_in": 9, "d_attn": 4, "d_mid": 3, "d_out": 10, "d_mlp": 7, "d_f": 9, "N_data": 2, "N_epochs": 2,
    "l_gen": 4, "B": 3,
}  # fmt: skip
"""By the paper's names. No two axes that meet have the same size, so that none can be taken for another."""
SMALL = {"N_V": 7, "l_max": 8, "l_x": 4, "l_z": 3, "L": 1, "L_enc": 1, "L_dec": 1, "d_e": 4, "d_attn": 3, "d_mid": 2,
         "d_mlp": 3, "d_f": 5}  # fmt: skip
"""For Algorithms 11-13: the oracle evaluates a loss once for every parameter."""
LEAST = {"N_V": 5, "d_e": 2, "d_f": 2}

FUNCTIONS = (
    oracle.token_embedding, oracle.positional_embedding, oracle.single_query_attention, oracle.attention,
    oracle.mh_attention, oracle.layer_norm, oracle.unembedding, oracle.ed_transformer, oracle.e_transformer,
    oracle.d_transformer, oracle.ed_training, oracle.e_training, oracle.d_training, oracle.d_inference,
    oracle.ed_inference,
)  # fmt: skip
ORACLE: dict[int, Callable[..., Any]] = dict(enumerate(FUNCTIONS, 1))
"""Number of an algorithm → its function of the oracle."""


@dataclasses.dataclass(frozen=True)
class Run:
    """One execution of an algorithm by both sides."""

    algorithm: int  # its number
    what: str  # what is special about the run, in words
    code: Callable[[], Any]  # calls the shipped function
    # calls the oracle; is given the record so that it can say which sequence of a batch it is at
    paper: Callable[[OracleRecord], Any]
    batched: bool = False  # whether the code is given a batch of sequences
    padded: bool = False  # whether the code's arrays have room for more tokens than the paper's
    greedy: bool = False  # whether the temperature is 0
    shows: frozenset[int] = frozenset()  # further algorithms whose lines are compared here, and in no runs of their own
    sharing: int = 1  # how many heads share keys and values
    hidden: frozenset[CodeType] = frozenset()  # the functions that are not observed


class Scenarios:
    """All runs, of one version of the code.

    `package`: the package `algorithms`, or a mutated copy of it; `seed`: of all inputs and parameters; `sizes`:
    those that differ from the default; `implementation`: the implementation that functions with a choice are asked
    for.
    """

    called: tuple[int, ...] = ()
    """The algorithms whose lines are compared, too, in the runs of those that call them."""

    def __init__(self, package: ModuleType, *, seed: int, sizes: dict[str, int], implementation: str):
        self.package = package
        self.functions = {n: entry.function for n, entry in package.REGISTRY.items()}
        self.seed, self.implementation = seed, implementation
        self.sizes, self.small = sized(sizes), sized(sizes, SMALL)

    def runs(self, algorithm: int) -> Iterator[Run]:
        """The runs of an algorithm; the same inputs for the same seed and sizes."""
        self.rng = np.random.default_rng([self.seed, algorithm])
        yield from getattr(self, f"_runs_{algorithm}")()

    def _run(self, n: int, what: str, code: Sequence[Any], paper: Sequence[Any] | None = None, **marks: Any) -> Run:
        """A run with arguments for the code and, where they differ, for the oracle.

        `marks`: `options`, `code_options` and `paper_options`, keyword arguments of both or of one; fields of the run.
        """
        options, paper = marks.pop("options", {}), code if paper is None else paper
        of_code, of_paper = marks.pop("code_options", {}), marks.pop("paper_options", {})
        call = functools.partial(self._asked(n), *map(_of_code, code), **options, **of_code)
        return Run(n, what, call, lambda _: ORACLE[n](*map(self._of_paper, paper), **options, **of_paper), **marks)

    def _asked(self, n: int) -> Callable[..., Any]:
        """The function of an algorithm, with the implementation asked for, if it has a choice that shows lines."""
        choice = {} if n in (1, 2, 3, 6, 7) else {"implementation": self.implementation}
        return functools.partial(self.functions[n], **choice)

    def _of_paper(self, argument: Any) -> Any:
        """An argument as the oracle has it."""
        is_tree = hasattr(argument, "_fields")
        return self._unstacked(argument) if is_tree else np.asarray(argument) if _is_array(argument) else argument

    def _unstacked(self, theta: Any) -> Any:
        """The parameters as the oracle has them."""
        return oracle.unstack(theta)

    def _array(self, *shape: int) -> jax.Array:
        return jax.device_put(self.rng.normal(size=shape))  # without a program for each shape

    def _tokens(self, *shape: int, N_V: int | None = None) -> np.ndarray:
        return self.rng.integers(0, N_V or self.sizes.N_V, shape)

    def _head(self, d_x: int, d_z: int, d_mid: int, *stack: int) -> Any:
        d = self.sizes.d_attn
        shapes = ((d, d_x), (d,), (d, d_z), (d,), (d_mid, d_z), (d_mid,))
        return self.package.AttentionParams(*(self._array(*stack, *shape) for shape in shapes))

    def _theta(self, kind: str, s: Any, **more: Any) -> Any:
        """Parameters, every one of them random, so that none can be left out unnoticed."""
        options = {"N_V": s.N_V, "l_max": s.l_max, "H": s.H, "d_e": s.d_e, "d_mlp": s.d_mlp, "d_attn": s.d_attn}
        options["d_mid"] = s.d_mid
        layers = {"ED": {"L_enc": s.L_enc, "L_dec": s.L_dec}, "E": {"L": s.L, "d_f": s.d_f}, "D": {"L": s.L}}[kind]
        config = getattr(self.package, f"{kind}TransformerConfig")(**options, **layers, **more)
        init = getattr(self.package, f"init_{kind.lower()}_transformer")
        theta = jax.eval_shape(lambda: init(jax.random.key(0), config))
        offset = getattr(theta.variant.norm, "offset", 0.0)

        def of(path: Any, leaf: Any) -> jax.Array:
            return jax.device_put(drawn(self.rng, path[-1].name, leaf.shape, offset=offset))

        return jax.tree_util.tree_map_with_path(of, theta)

    def _runs_1(self) -> Iterator[Run]:
        W_e = self._array(self.sizes.d_e, self.sizes.N_V)
        for v in (int(self._tokens()), self.sizes.N_V - 1):
            yield self._run(1, f"v = {v}", (v, W_e))

    def _runs_2(self) -> Iterator[Run]:
        W_p = self._array(self.sizes.d_e, self.sizes.l_max)
        for l in (0, self.sizes.l_max - 1):
            yield self._run(2, f"ℓ = {l}", (l, W_p))

    def _runs_3(self) -> Iterator[Run]:
        s = self.sizes
        W_qkv = self._head(s.d_in, s.d_in, s.d_out)
        yield self._run(3, "", (self._array(s.d_in), self._array(s.d_in, s.T), W_qkv))

    def _runs_4(self) -> Iterator[Run]:
        s = self.sizes
        yield from self._attentions(4, self._head(s.d_x, s.d_z, s.d_out))

    def _runs_5(self) -> Iterator[Run]:
        s = self.sizes
        heads = self._head(s.d_x, s.d_z, s.d_mid, s.H)
        W = self.package.MHAttentionParams(heads, self._array(s.d_out, s.H * s.d_mid), self._array(s.d_out))
        yield from self._attentions(5, W)

    def _attentions(self, n: int, W: Any) -> Iterator[Run]:
        """With a structural mask, one with a column that permits nothing, and a batch with a mask for each."""
        s = self.sizes
        X, Z = self._array(s.d_x, s.l_x), self._array(s.d_z, s.l_z)
        dense = self.rng.random((s.l_z, s.l_x)) < 0.6
        dense[:, s.l_x // 2] = False
        unidirectional = np.arange(s.l_z)[:, None] <= np.arange(s.l_x)[None, :]
        yield self._run(n, "unidirectional", (X, Z, W, self.package.UNIDIRECTIONAL), (X, Z, W, unidirectional))
        yield self._run(n, "a dense mask with an empty column", (X, Z, W, dense))
        X, Z = self._array(s.d_x, s.B, s.l_x), self._array(s.d_z, s.B, s.l_z)
        masks = self.rng.random((s.B, s.l_z, s.l_x)) < 0.6
        what, each = f"a batch of {s.B} with masks of their own", [np.moveaxis(np.asarray(A), 1, 0) for A in (X, Z)]
        unstacked = self._unstacked(W)
        yield self._batch(
            n, what, (X, Z, W, masks), lambda X, Z, mask: ORACLE[n](X, Z, unstacked, mask), [*each, masks]
        )

    def _batch(self, n: int, what: str, code: Sequence[Any], paper: Callable[..., Any], each: Sequence[Any]) -> Run:
        """Several sequences at once, which the oracle is given one by one."""

        def one_by_one(record: OracleRecord) -> None:
            for record.sequence, arguments in enumerate(zip(*each, strict=True)):
                paper(*arguments)

        return Run(n, what, functools.partial(self._asked(n), *map(_of_code, code)), one_by_one, batched=True)

    def _runs_6(self) -> Iterator[Run]:
        e, gamma, beta = (self._array(self.sizes.d_e) for _ in range(3))
        yield self._run(6, "ε = 0", (e, gamma, beta))
        epsilon, v = 0.1, np.var(e)  # √(v + ε) for √v is the paper's formula with another γ
        paper = (e, gamma * np.sqrt(v / (v + epsilon)), beta)
        yield self._run(6, f"ε = {epsilon}", (e, gamma, beta), paper, code_options={"epsilon": epsilon})

    def _runs_7(self) -> Iterator[Run]:
        s = self.sizes
        yield self._run(7, "", (self._array(s.d_e), self._array(s.N_V, s.d_e)))

    def _runs_8(self) -> Iterator[Run]:
        yield from self._transformer(8, ORACLE[8], self._theta("ED", self.sizes), (self.sizes.l_z, self.sizes.l_x))

    def _runs_9(self) -> Iterator[Run]:
        yield from self._transformer(9, ORACLE[9], self._theta("E", self.sizes), (self.sizes.l_x,))

    def _runs_10(self) -> Iterator[Run]:
        theta = self._theta("D", self.sizes)
        yield from self._transformer(10, ORACLE[10], theta, (self.sizes.l_x,))
        yield next(self._transformer(10, ORACLE[10], theta._replace(W_u=None), (self.sizes.l_x,), "W_u = W_eᵀ"))

    def _transformer(
        self, n: int, paper: Callable[..., Any], theta: Any, lengths: tuple[int, ...], what: str = "one sequence"
    ) -> Iterator[Run]:
        """A single sequence (or pair), and a batch."""
        B, paper = self.sizes.B, functools.partial(paper, theta=self._unstacked(theta))
        single = [self._tokens(l) for l in lengths]
        code = functools.partial(self._asked(n), *map(jnp.asarray, single), theta)
        yield Run(n, what, code, lambda _: paper(*single))
        batch = [self._tokens(B, l) for l in lengths]
        yield self._batch(n, f"a batch of {B}", (*batch, theta), paper, batch)

    def _data(self, l: int) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
        """Sequences of different lengths: padded, their lengths, and one by one."""
        x = self._tokens(self.small.N_data, l, N_V=self.small.N_V)
        lengths = np.array([max(2, l - n) for n in range(len(x))])
        return x, lengths, [sequence[:length] for sequence, length in zip(x, lengths, strict=True)]

    def _training(self, n: int, code: Sequence[Any], paper: Sequence[Any], **options: Any) -> Iterator[Run]:
        shared = {"N_epochs": self.small.N_epochs, "eta": 0.1}
        yield self._run(n, "padded sequences", code, paper, options=shared, padded=True, **options)

    def _runs_11(self) -> Iterator[Run]:
        s, theta = self.small, self._theta("ED", self.small)
        (x, l_x, xs), (z, l_z, zs) = self._data(s.l_x), self._data(s.l_z + 1)
        lengths = {"z_length": jnp.asarray(l_z), "length": jnp.asarray(l_x)}
        yield from self._training(11, (z, x, theta), (zs, xs, theta), code_options=lengths)

    def _runs_12(self) -> Iterator[Run]:
        s, theta, p_mask, key = self.small, self._theta("E", self.small), 0.5, jax.random.key(self.seed)
        x, lengths, xs = self._data(s.l_x)
        masked = [[masked_tokens(key, i, n, p_mask, x.shape[1]) for n in range(s.N_data)] for i in range(s.N_epochs)]
        of_code = {"p_mask": p_mask, "key": key, "length": jnp.asarray(lengths)}
        yield from self._training(12, (x, theta), (xs, theta), code_options=of_code, paper_options={"masked": masked})

    def _runs_13(self) -> Iterator[Run]:
        theta = self._theta("D", self.small)
        x, lengths, xs = self._data(self.small.l_x)
        yield from self._training(13, (x, theta), (xs, theta), code_options={"length": jnp.asarray(lengths)})
        head = importlib.import_module(f"{self.package.__name__}.lines").MTP(weight=0.7)
        theta = self._theta("D", self.small, variant=self.package.PAPER.but(mtp=head))

        def further(x: Any, theta: Any) -> Any:
            return head.weight * sum(family.mtp_losses(x, theta, PAPER))

        of_both, of_paper = {"N_epochs": 1, "eta": 0.1}, {"further": further}
        yield self._run(13, "a second head", (x[:1], theta), (xs[:1], theta), options=of_both, paper_options=of_paper)

    def _runs_14(self) -> Iterator[Run]:
        s, theta = self.sizes, self._theta("D", self.sizes)
        x, key = self._tokens(s.l_x), jax.random.key(self.seed)
        for tau in (0.7, 0.0, math.inf):
            yield self._generation(14, x, theta, tau, key, l_gen=s.l_gen)

    def _runs_15(self) -> Iterator[Run]:
        s, theta = self.sizes, self._theta("ED", self.sizes)
        theta = theta._replace(W_u=theta.W_u.at[-1].multiply(0.3))  # so that eos_token does not come at once
        z, l_max = self._tokens(s.l_z), s.l_max - 1
        for tau in (1.3, 0.0, math.inf):
            key = self._long_enough(z, self._unstacked(theta), tau, l_max)
            yield self._generation(15, z, theta, tau, key, l_max=l_max)

    def _generation(
        self, n: int, x: np.ndarray, theta: Any, tau: float, key: jax.Array, of_paper: Any = None, **options: int
    ) -> Run:
        samples: Any = {"code_options": {"key": key}, "paper_options": {"sample": sampler(key), **(of_paper or {})}}
        both = {"tau": tau, **options}
        return self._run(n, f"τ = {tau}", (x, theta), options=both, padded=True, greedy=tau == 0, **samples)

    def _long_enough(self, z: np.ndarray, theta: Any, tau: float, l_max: int) -> jax.Array:
        """The first key with which Algorithm 15 makes a few tokens, for at the first eos_token it ends."""
        keys = [jax.random.key(self.seed + i) for i in range(20)]
        lengths = [len(oracle.ed_inference(z, theta, tau, sampler(key), l_max)) for key in keys[: 20 if tau else 1]]
        return keys[next((i for i, n in enumerate(lengths) if 4 <= n < l_max), int(np.argmax(lengths)))]


def sized(given: dict[str, int], others: dict[str, int] | None = None) -> Any:
    """The sizes of a run. Raises ValueError for an unknown name, or sizes that do not fit together.

    `given`: those that were asked for; `others`: defaults that are not `SIZES`.
    """
    for name in given:
        if name not in SIZES:
            raise ValueError(f"--sizes: expected one of {', '.join(SIZES)}, got {name!r}")
    s = SimpleNamespace(**SIZES | (others or {}) | given)
    least = dict.fromkeys(SIZES, 1) | LEAST | {"l_max": max(s.l_x + s.l_gen, s.l_z)}  # so that all inputs fit
    for name, size in vars(s).items():
        if size < least[name]:
            raise ValueError(f"{name}: expected at least {least[name]}, got {size}")
    return s


def _is_array(argument: Any) -> bool:
    return isinstance(argument, (jax.Array, np.ndarray))


def _of_code(argument: Any) -> Any:
    return jax.device_put(argument) if _is_array(argument) else argument


def masked_tokens(key: jax.Array, i: int, n: int, p_mask: float, l: int) -> np.ndarray:
    """Which tokens epoch i masks in sequence n, as Algorithm 12's `key` promises."""
    key = jax.random.fold_in(jax.random.fold_in(key, i), n)
    return np.asarray(jax.random.bernoulli(key, p_mask, (l,)))


def sampler(key: jax.Array) -> oracle.inference.Sample:
    """Draws token i from q with `fold_in(key, i)`, as the `key` of Algorithms 14 and 15 promises."""
    return lambda q, i: int(jax.random.categorical(jax.random.fold_in(key, i), jnp.log(jnp.asarray(q))))
