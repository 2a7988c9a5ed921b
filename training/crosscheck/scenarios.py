"""What is run: for each algorithm, inputs and parameters, the shipped function and the oracle."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from training.crosscheck import oracle

from .records import OracleRecord
from .sizes import Sizes, sizes_from

__all__ = ["Run", "Scenarios", "sampler"]


@dataclasses.dataclass(frozen=True)
class Run:
    """One execution of an algorithm by both sides.

    Attributes:
        algorithm: its number.
        what: what is special about the run, in words.
        code: calls the shipped function.
        paper: calls the oracle; is given the record so that it can say which sequence of a batch it is at.
        batched: whether the code is given a batch of sequences.
        padded: whether the code's arrays have room for more tokens than the paper's.
        greedy: whether the temperature is 0.
        shows: further algorithms whose lines are compared here, and in no runs of their own.
        sharing: how many heads share keys and values.
    """

    algorithm: int
    what: str
    code: Callable[[], Any]
    paper: Callable[[OracleRecord], Any]
    batched: bool = False
    padded: bool = False
    greedy: bool = False
    shows: frozenset[int] = frozenset()
    sharing: int = 1


class Scenarios:
    """All runs, of one version of the code.

    `package`: the package `algorithms`, or a mutated copy of it; `seed`: of all inputs and parameters; `sizes`:
    those that differ from the default; `implementation`: the implementation that functions with a choice are asked
    for.
    """

    def __init__(self, package: ModuleType, *, seed: int, sizes: dict[str, int], implementation: str):
        self.package = package
        self.functions = {n: entry.function for n, entry in package.REGISTRY.items()}
        self.seed, self.implementation = seed, implementation
        self.sizes, self.small = sizes_from(sizes)

    def runs(self, algorithm: int) -> Iterator[Run]:
        """The runs of an algorithm; the same inputs for the same seed and sizes."""
        yield from self._seeded(algorithm, getattr(self, f"_runs_{algorithm}"))

    def _seeded(self, algorithm: int, runs: Callable[[], Iterator[Run]]) -> Iterator[Run]:
        self.rng = np.random.default_rng([self.seed, algorithm])
        yield from runs()

    def _asked(self, n: int) -> Callable[..., Any]:
        """The function of an algorithm, with the implementation asked for."""
        return functools.partial(self.functions[n], implementation=self.implementation)

    def _array(self, *shape: int) -> jax.Array:
        return jnp.asarray(self.rng.normal(size=shape))

    def _tokens(self, *shape: int, N_V: int | None = None) -> np.ndarray:
        return self.rng.integers(0, N_V or self.sizes.N_V, shape)

    def _like(self, tree: Any) -> Any:
        """Parameters of a tree's structure, every one of them random, so that none can be left out unnoticed."""
        return jax.tree.map(lambda leaf: self._array(*leaf.shape) * 0.7, tree)

    def _head(self, d_x: int, d_z: int, d_mid: int, *stack: int) -> Any:
        d = self.sizes.d_attn
        shapes = ((d, d_x), (d,), (d, d_z), (d,), (d_mid, d_z), (d_mid,))
        return self.package.AttentionParams(*(self._array(*stack, *shape) for shape in shapes))

    def _unstacked(self, theta: Any) -> Any:
        """The parameters as the oracle has them."""
        return oracle.unstack(theta)

    def _theta(self, kind: str, s: Sizes, **more: Any) -> Any:
        options = {"N_V": s.N_V, "l_max": s.l_max, "H": s.H, "d_e": s.d_e, "d_mlp": s.d_mlp, "d_attn": s.d_attn}
        options["d_mid"] = s.d_mid
        layers = {"ED": {"L_enc": s.L_enc, "L_dec": s.L_dec}, "E": {"L": s.L, "d_f": s.d_f}, "D": {"L": s.L}}[kind]
        config = getattr(self.package, f"{kind}TransformerConfig")(**options, **layers, **more)
        init = getattr(self.package, f"init_{kind.lower()}_transformer")
        return self._like(jax.eval_shape(lambda: init(jax.random.key(0), config)))

    def _runs_1(self) -> Iterator[Run]:
        W_e = self._array(self.sizes.d_e, self.sizes.N_V)
        for v in (int(self._tokens()), self.sizes.N_V - 1):
            yield _simple(1, f"v = {v}", self.functions[1], oracle.token_embedding, v, W_e)

    def _runs_2(self) -> Iterator[Run]:
        W_p = self._array(self.sizes.d_e, self.sizes.l_max)
        for l in (0, self.sizes.l_max - 1):
            yield _simple(2, f"ℓ = {l}", self.functions[2], oracle.positional_embedding, l, W_p)

    def _runs_3(self) -> Iterator[Run]:
        s = self.sizes
        W_qkv = self._head(s.d_in, s.d_in, s.d_out)
        e, E = self._array(s.d_in), self._array(s.d_in, s.T)
        yield _simple(3, "", self.functions[3], oracle.single_query_attention, e, E, W_qkv)

    def _masks(self) -> Iterator[tuple[str, Any, np.ndarray]]:
        """Structural masks, and a random one with a column that permits nothing."""
        l_z, l_x = self.sizes.l_z, self.sizes.l_x
        dense = self.rng.random((l_z, l_x)) < 0.6
        dense[:, l_x // 2] = False
        unidirectional = np.arange(l_z)[:, None] <= np.arange(l_x)[None, :]
        yield "unidirectional", self.package.UNIDIRECTIONAL, unidirectional
        yield "a dense mask with an empty column", jnp.asarray(dense), dense

    def _batch_of_attentions(self, n: int, paper: Callable[..., Any], W: Any) -> Run:
        """Several sequences, each with a context and a mask of its own."""
        s = self.sizes
        X, Z = self._array(s.d_x, s.B, s.l_x), self._array(s.d_z, s.B, s.l_z)
        masks = self.rng.random((s.B, s.l_z, s.l_x)) < 0.6

        def each(record: OracleRecord) -> None:
            for record.sequence in range(s.B):
                b = record.sequence
                paper(np.asarray(X[:, b]), np.asarray(Z[:, b]), oracle.unstack(W), masks[b])

        code = functools.partial(self._asked(n), X, Z, W, jnp.asarray(masks))
        return Run(n, f"a batch of {s.B} with masks of their own", code, each, batched=True)

    def _runs_4(self) -> Iterator[Run]:
        s = self.sizes
        W_qkv = self._head(s.d_x, s.d_z, s.d_out)
        X, Z = self._array(s.d_x, s.l_x), self._array(s.d_z, s.l_z)
        for what, mask, dense in self._masks():
            yield Run(
                4,
                what,
                functools.partial(self._asked(4), X, Z, W_qkv, mask),
                functools.partial(_oracle, oracle.attention, X, Z, W_qkv, dense),
            )
        yield self._batch_of_attentions(4, oracle.attention, W_qkv)

    def _runs_5(self) -> Iterator[Run]:
        s = self.sizes
        heads = self._head(s.d_x, s.d_z, s.d_mid, s.H)
        W = self.package.MHAttentionParams(heads, self._array(s.d_out, s.H * s.d_mid), self._array(s.d_out))
        X, Z = self._array(s.d_x, s.l_x), self._array(s.d_z, s.l_z)
        for what, mask, dense in self._masks():
            yield Run(
                5,
                what,
                functools.partial(self._asked(5), X, Z, W, mask),
                functools.partial(_oracle, oracle.mh_attention, X, Z, W, dense),
            )
        yield self._batch_of_attentions(5, oracle.mh_attention, W)

    def _runs_6(self) -> Iterator[Run]:
        e, gamma, beta = (self._array(self.sizes.d_e) for _ in range(3))
        yield _simple(6, "ε = 0", self.functions[6], oracle.layer_norm, e, gamma, beta)
        epsilon = 0.1  # √(v + ε) for √v is the paper's formula with another γ
        v = np.var(e)
        yield Run(
            6,
            f"ε = {epsilon}",
            functools.partial(self.functions[6], e, gamma, beta, epsilon=epsilon),
            functools.partial(_oracle, oracle.layer_norm, e, gamma * np.sqrt(v / (v + epsilon)), beta),
        )

    def _runs_7(self) -> Iterator[Run]:
        s = self.sizes
        yield _simple(7, "", self.functions[7], oracle.unembedding, self._array(s.d_e), self._array(s.N_V, s.d_e))

    def _runs_8(self) -> Iterator[Run]:
        s = self.sizes
        theta = self._theta("ED", s)
        yield from self._transformer(8, oracle.ed_transformer, theta, (s.l_z, s.l_x))

    def _runs_9(self) -> Iterator[Run]:
        yield from self._transformer(9, oracle.e_transformer, self._theta("E", self.sizes), (self.sizes.l_x,))

    def _runs_10(self) -> Iterator[Run]:
        theta = self._theta("D", self.sizes)
        yield from self._transformer(10, oracle.d_transformer, theta, (self.sizes.l_x,))
        tied = theta._replace(W_u=None)
        yield next(self._transformer(10, oracle.d_transformer, tied, (self.sizes.l_x,), "W_u = W_eᵀ"))

    def _transformer(
        self, n: int, paper: Callable[..., Any], theta: Any, lengths: tuple[int, ...], what: str = "one sequence"
    ) -> Iterator[Run]:
        """A single sequence (or pair), and a batch."""
        code = self._asked(n)
        B, unstacked = self.sizes.B, self._unstacked(theta)
        single = self.single = [self._tokens(l) for l in lengths]
        yield Run(n, what, lambda: code(*map(jnp.asarray, single), theta), lambda _: paper(*single, theta=unstacked))
        batch = [self._tokens(B, l) for l in lengths]

        def each(record: OracleRecord) -> None:
            for record.sequence in range(B):
                paper(*(tokens[record.sequence] for tokens in batch), theta=unstacked)

        yield Run(n, f"a batch of {B}", lambda: code(*map(jnp.asarray, batch), theta), each, batched=True)

    def _data(self, l: int) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
        """Sequences of different lengths: padded, their lengths, and one by one."""
        x = self._tokens(self.small.N_data, l, N_V=self.small.N_V)
        lengths = np.array([max(2, l - n) for n in range(len(x))])
        return x, lengths, [sequence[:length] for sequence, length in zip(x, lengths, strict=True)]

    def _runs_11(self) -> Iterator[Run]:
        s, theta = self.small, self._theta("ED", self.small)
        (x, l_x, xs), (z, l_z, zs) = self._data(s.l_x), self._data(s.l_z + 1)
        options = {"N_epochs": s.N_epochs, "eta": 0.1}
        yield Run(
            11,
            "padded sequences",
            lambda: self._asked(11)(
                *map(jnp.asarray, (z, x)), theta, z_lengths=jnp.asarray(l_z), x_lengths=jnp.asarray(l_x), **options
            ),
            lambda _: oracle.ed_training(zs, xs, oracle.unstack(theta), **options),
            padded=True,
        )

    def _runs_12(self) -> Iterator[Run]:
        s, theta, p_mask, key = self.small, self._theta("E", self.small), 0.5, jax.random.key(self.seed)
        x, lengths, xs = self._data(s.l_x)
        masked = [[_masked(key, i, n, p_mask, x.shape[1]) for n in range(s.N_data)] for i in range(s.N_epochs)]
        options = {"N_epochs": s.N_epochs, "eta": 0.1}
        yield Run(
            12,
            "padded sequences",
            lambda: self._asked(12)(
                jnp.asarray(x), theta, p_mask=p_mask, key=key, lengths=jnp.asarray(lengths), **options
            ),
            lambda _: oracle.e_training(xs, oracle.unstack(theta), masked=masked, **options),
            padded=True,
        )

    def _runs_13(self) -> Iterator[Run]:
        s, theta = self.small, self._theta("D", self.small)
        x, lengths, xs = self._data(s.l_x)
        options = {"N_epochs": s.N_epochs, "eta": 0.1}
        yield Run(
            13,
            "padded sequences",
            lambda: self._asked(13)(jnp.asarray(x), theta, lengths=jnp.asarray(lengths), **options),
            lambda _: oracle.d_training(xs, oracle.unstack(theta), **options),
            padded=True,
        )

    def _runs_14(self) -> Iterator[Run]:
        s, theta = self.sizes, self._theta("D", self.sizes)
        x, key = self._tokens(s.l_x), jax.random.key(self.seed)
        unstacked = oracle.unstack(theta)
        for tau in (0.7, 0.0, math.inf):
            yield Run(
                14,
                f"τ = {tau}",
                functools.partial(self._asked(14), jnp.asarray(x), theta, l_gen=s.l_gen, tau=tau, key=key),
                functools.partial(_oracle_as_is, oracle.d_inference, x, unstacked, s.l_gen, tau, sampler(key)),
                padded=True,
                greedy=tau == 0,
            )

    def _runs_15(self) -> Iterator[Run]:
        s, theta = self.sizes, self._theta("ED", self.sizes)
        theta = theta._replace(W_u=theta.W_u.at[-1].multiply(0.3))  # so that eos_token does not come at once
        z, unstacked, l_max = self._tokens(s.l_z), oracle.unstack(theta), s.l_max - 1
        for tau in (1.3, 0.0, math.inf):
            key = self._long_enough(z, unstacked, tau, l_max)
            yield Run(
                15,
                f"τ = {tau}",
                functools.partial(self._asked(15), jnp.asarray(z), theta, tau=tau, key=key, l_max=l_max),
                functools.partial(_oracle_as_is, oracle.ed_inference, z, unstacked, tau, sampler(key), l_max),
                padded=True,
                greedy=tau == 0,
            )

    def _long_enough(self, z: np.ndarray, theta: Any, tau: float, l_max: int) -> jax.Array:
        """The first key with which Algorithm 15 makes a few tokens, for at the first eos_token it ends."""
        keys = [jax.random.key(self.seed + i) for i in range(20)]
        lengths = [len(oracle.ed_inference(z, theta, tau, sampler(key), l_max)) for key in keys[: 20 if tau else 1]]
        return keys[next((i for i, n in enumerate(lengths) if 4 <= n < l_max), int(np.argmax(lengths)))]


def _simple(n: int, what: str, code: Callable[..., Any], paper: Callable[..., Any], *arguments: Any) -> Run:
    return Run(n, what, functools.partial(code, *arguments), functools.partial(_oracle, paper, *arguments))


def _oracle(paper: Callable[..., Any], *rest: Any) -> Any:
    """Call an oracle's function with NumPy's arrays; the last argument is the record, which it has no use for."""
    return paper(*(argument if isinstance(argument, int) else oracle.unstack(argument) if hasattr(argument, "_fields")
                   else np.asarray(argument) for argument in rest[:-1]))  # fmt: skip


def _oracle_as_is(paper: Callable[..., Any], *rest: Any) -> Any:
    return paper(*rest[:-1])


def _masked(key: jax.Array, i: int, n: int, p_mask: float, l: int) -> np.ndarray:
    """Which tokens epoch i masks in sequence n, as Algorithm 12's `key` promises."""
    key = jax.random.fold_in(jax.random.fold_in(key, i), n)
    return np.asarray(jax.random.bernoulli(key, p_mask, (l,)))


def sampler(key: jax.Array) -> oracle.inference.Sample:
    """Draws token i from q with `fold_in(key, i)`, as the `key` of Algorithms 14 and 15 promises."""
    return lambda q, i: int(jax.random.categorical(jax.random.fold_in(key, i), jnp.log(jnp.asarray(q))))
