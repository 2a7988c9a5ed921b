"""A variant: a model as a record of the lines of Algorithms 8 to 10, and the check that θ fits it."""

import dataclasses
import functools
import itertools
import math
import operator
from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp

from algorithms.machinery.record import Count, Positive, Record, as_arguments, serializable
from algorithms.model.attention import Attention
from algorithms.model.embedding import Embedding, Unembedding
from algorithms.model.layer_end import LayerEnd
from algorithms.model.mixer import Mixer
from algorithms.model.mlp import MLP, of_hidden_units
from algorithms.model.norm import LayerNorm

Order = Literal["norm_first", "norm_last", "side_by_side", "one_norm", "no_norm"]


class LayerLines(NamedTuple):
    """The lines of one layer."""

    attention: Mixer
    mlp: MLP | None
    order: Order | None
    first_norm: bool  # whether its attention has a norm, if the order has one
    lends: int | None  # its number, if later layers read its keys and values

    @property
    def of_run(self) -> tuple[Any, ...]:
        """Equal in all layers of a run: the shapes of the attention, and everything else about the layer."""
        return self.attention.shapes(), *self[1:]

    def shapes(self, norm: Any) -> tuple[Any, ...]:
        """The shapes of the attention, its norm, the MLP and its norm, given those of a norm."""
        norm1 = norm if self.first_norm and self.order != "no_norm" else None
        has_norm = self.mlp and not self.mlp.own_norms and self.order not in ("no_norm", "one_norm")
        return self.attention.shapes(), norm1, self.mlp and of_hidden_units(self.mlp), norm if has_norm else None


class Run(NamedTuple):
    """Consecutive layers that differ in attentions alone, with parameters of equal shapes: one stack of θ, one loop.

    The cycle of the layers repeats it.
    """

    layers: tuple[LayerLines, ...]
    start: int  # the number of the first of them
    step: int  # from there to the first of them in the next repetition
    times: int  # repetitions

    @property
    def numbers(self) -> list[int]:
        """The numbers of the layers in its stack, in their order."""
        return [self.start + p * self.step + j for p in range(self.times) for j in range(len(self.layers))]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MTP(Record):
    """A head of Algorithm 10 that predicts x[t + 2] from column t of line 10 and x[t + 1]; see `algorithms.mtp`.

    Attributes:
        weight: λ, the weight of its loss in training.

    Source: DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", §2.2.
    """

    weight: Positive = 0.3


VARIANTS: dict[str, "Variant"] = {}
"""Name → variant; filled by `algorithms.model.variants`. Variants with the same lines are equal."""


@serializable
@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, kw_only=True)
class Variant(Record):
    """A model as the lines of Algorithms 8 to 10. Every default is the paper's. In θ it is a node without leaves.

    Attributes:
        embedding: lines 1 to 3.
        norm: lines 5, 7 and 10.
        attention: line 6. If there are n, the layers cycle through them: layer l = 0, 1, … has number l mod n. They may
            have different parameters, and need not be attentions.
        mlp: line 8; None for attention-only layers. If there are n, the layers cycle through them, too.
        first: the MLPs of the first layers, if they differ from those of the rest, as in DeepSeek.
        order: order of a layer. ``"norm_first"``: X + f(norm(X)); ``"norm_last"``: norm(X + f(X)); ``"side_by_side"``:
            X + attention(norm(X)) + mlp(norm(X)), where both read the layer's input, and have norms of their own;
            ``"one_norm"``: the same with one norm; ``"no_norm"``: X + f(X). None is the algorithm's own,
            ``"norm_last"`` in 8 and 9 and ``"norm_first"`` in 10. If there are n, the layers cycle through them,
            too, as in OLMo Hybrid.
        residual_factor: factor of the outputs of attentions and MLPs, as in Granite.
        first_norm: whether the first layer's attention has a norm; in ModernBERT and Ettin it has not.
        final_norm: whether a norm follows the last layer. None is the algorithm's own: yes in 10 (line 10), otherwise
            no.
        unembedding: the last line.
        shared_layers: number of consecutive layers that share parameters, in ALBERT all; they are one layer of θ.
        head: whether Algorithm 9 has lines 10 and 11, and the last; a bare encoder has not. ``"unembedding"``: the last
            alone, as in LLaDA.
        layer_end: a step behind the lines of each layer of Algorithm 10, as in Gemma 4; None: nothing.
        pooler: whether Algorithm 9 has W_pool and b_pool, which BERT's classifiers apply to the first token's encoding.
        mtp: the head of Algorithm 10 for the token after the next, as in DeepSeek-V3; None: there is none.
    """

    __expected__: ClassVar[str] = "a Variant such as PAPER"

    embedding: Embedding = Embedding()
    norm: LayerNorm = LayerNorm()
    attention: Mixer | tuple[Mixer, ...] = Attention()
    mlp: MLP | tuple[MLP | None, ...] | None = MLP()
    first: tuple[MLP | None, ...] = ()
    order: Order | tuple[Order, ...] | None = None
    residual_factor: Positive = 1.0
    first_norm: bool = True
    final_norm: bool | None = None
    unembedding: Unembedding = Unembedding()
    shared_layers: Count = 1
    head: bool | Literal["unembedding"] = True
    pooler: bool = False
    mtp: MTP | None = None
    layer_end: LayerEnd | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in ("attention", "mlp", "order"):
            lines = _in_turn(getattr(self, field))
            if not lines:
                self.refuse(field, "one line, or several")
            if len(set(lines)) == 1:  # so that records of the same model are equal
                object.__setattr__(self, field, lines[0])
        if self.shared_layers > 1 and not self.is_one_stack:
            self.refuse("shared_layers", "1, since layers that share parameters cannot have different ones")
        for l, line in enumerate(self.attentions):
            lenders = [a for i, a in enumerate(self.attentions[:l]) if i == line.keys_of]
            if line.keys_of is not None and [dataclasses.replace(line, keys_of=None)] != lenders:
                self.refuse("attention", "layers with keys_of like the earlier layer of that number but for keys_of")
        if self.mtp and self.lenders:
            self.refuse("mtp", "None, since the last layer, which its layer is like, reads keys of another")
        for field, lines in (("attention", self.attentions), ("mlp", self.mlps)):
            sizes = [(name, size) for line in lines if line for name, size in line.sizes().items()]
            if len(dict(sizes)) < len(set(sizes)):
                self.refuse(field, "lines whose axes of the same name have the same size")

    def __hash__(self) -> int:
        """The hash of the fields, computed once: every call with θ asks for it."""
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        return hash(tuple(self.__getstate__().values()))

    def __getstate__(self) -> dict[str, Any]:
        """The fields; hashes differ between processes."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def __repr__(self) -> str:
        """Its name; otherwise the nearest named variant, and the differences."""
        name, base = min(VARIANTS.items(), key=lambda named: len(self.changes(named[1])), default=("Variant", None))
        changes = as_arguments(self.changes(base))
        return f"{name}({changes})" if base is None else f"{name}.but({changes})" if changes else name

    @functools.cached_property
    def attentions(self) -> tuple[Mixer, ...]:
        """The attentions as a tuple."""
        return _in_turn(self.attention)

    @functools.cached_property
    def mlps_in_turn(self) -> tuple[MLP | None, ...]:
        """The MLPs through which the layers cycle, as a tuple."""
        return _in_turn(self.mlp)

    @functools.cached_property
    def mlps(self) -> tuple[MLP | None, ...]:
        """All MLPs: those in turn, and then those of the first layers."""
        return *self.mlps_in_turn, *self.first

    @functools.cached_property
    def sizes(self) -> dict[str, int]:
        """The sizes of the axes that the lines have and configurations do not, by name."""
        lines = [line for line in (*self.attentions, *self.mlps, self.layer_end) if line]
        hidden = {f"d_mlp_{mlp.d_mlp}": mlp.d_mlp for mlp in self.mlps if mlp and mlp.d_mlp}
        of_mtp = {"L_mtp": 1, "2": 2} if self.mtp else {}
        return {name: size for line in lines for name, size in line.sizes().items()} | hidden | of_mtp

    @functools.cached_property
    def lenders(self) -> frozenset[int]:
        """The numbers of the layers whose keys and values later ones read."""
        return frozenset(line.keys_of for line in self.attentions if line.keys_of is not None)

    @functools.cached_property
    def orders(self) -> tuple[Order | None, ...]:
        """The orders as a tuple."""
        return _in_turn(self.order)

    @functools.cached_property
    def cycle(self) -> int:
        """The number of layers after which all lines repeat."""
        return math.lcm(*map(len, (self.attentions, self.mlps_in_turn, self.orders)))

    def attention_of(self, l: int) -> Mixer:
        """The attention of layer l."""
        return self.attentions[l % len(self.attentions)]

    def by_attention(self, l: Any, layers: tuple[LayerLines, ...], of_line: Callable[..., Any], *arguments: Any) -> Any:
        """``of_line(line, *arguments)``, with the attention of layer l, one of these layers, whose number is traced."""
        distinct = tuple(dict.fromkeys(map(operator.attrgetter("attention"), layers)))
        if len(distinct) == 1:
            return of_line(distinct[0], *arguments)
        numbers = [distinct.index(line) if line in distinct else 0 for line in self.attentions]
        turn = jnp.asarray(numbers)[l % len(numbers)]
        return jax.lax.switch(turn, [functools.partial(of_line, line) for line in distinct], *arguments)

    @functools.cached_property
    def is_one_stack(self) -> bool:
        """Whether the parameters of all layers have equal shapes, and are therefore one stack of θ."""
        return self.n_leading == 0 and len({self.lines(l).of_run for l in range(self.cycle)}) == 1

    @functools.cached_property
    def n_leading(self) -> int:
        """The number of first layers that differ from the others."""
        return max(len(self.first), int(not self.first_norm))

    def of_every_layer(self, stacked: Any) -> Any:
        """The stacked parameters of all L layers, shared ones repeated, from those that a stack of θ has."""
        return jax.tree.map(lambda a: jnp.repeat(a, self.shared_layers, axis=0), stacked)

    def lines(self, l: int) -> LayerLines:
        """The lines of layer l = 0, 1, …."""
        each, mlps, orders = self.attentions, self.mlps_in_turn, self.orders
        mlp = self.first[l] if l < len(self.first) else mlps[l % len(mlps)]
        lends = l if l in self.lenders else None
        return LayerLines(each[l % len(each)], mlp, orders[l % len(orders)], l > 0 or self.first_norm, lends)

    @functools.lru_cache(maxsize=1024)  # noqa: B019 - as below
    def of_layer(self, l: int) -> "Variant":
        """The variant of layer l alone, which reads columns of embeddings."""
        attention, mlp, order, first_norm, _ = self.lines(l)
        embedding = self.embedding.but(positions=None, normalized=False)
        alone = {"first": (), "first_norm": first_norm, "shared_layers": 1, "mtp": None}
        return self.but(embedding=embedding, attention=attention, mlp=mlp, order=order, **alone)

    @property
    def of_mtp(self) -> "Variant":
        """The variant of the head for the token after the next: one layer, as the last of the cycle."""
        return self.of_layer(self.n_leading + self.cycle - 1)

    @functools.lru_cache(maxsize=1024)  # noqa: B019 - of variants that are made in a loop, too
    def parts(self, L: int | None) -> tuple[tuple[Run, ...], ...]:
        """The runs of L layers, those of a cycle together, in order; with None, the first layers and one cycle."""
        n, cycle = self.n_leading, self.cycle
        L = n + cycle * self.shared_layers if L is None else L
        if self.lenders and len(self.attentions) < L:
            n = len(self.attentions)
            raise ValueError(f"variant.attention: expected one for each of {L} layers, as some have keys_of, got {n}")
        if self.is_one_stack:
            return ((Run(tuple(map(self.lines, range(L))), 0, L, 1),),)
        times, rest = divmod(L - n, cycle)
        whole = self._runs(n, cycle, times)
        rests = [self._runs(n, L - n, 1)] if len(whole) == 1 else [whole, self._runs(L - rest, rest, 1)]
        return tuple(runs for runs in (self._runs(0, n, 1), *rests) if runs and runs[0].times)

    def _runs(self, start: int, n: int, times: int) -> tuple[Run, ...]:
        found = itertools.groupby(range(start, start + n), lambda l: self.lines(l).of_run)
        numbers = [list(of) for _, of in found]
        return tuple(Run(tuple(map(self.lines, of)), of[0], n, times) for of in numbers)


def _in_turn(lines: Any) -> Any:
    return lines if isinstance(lines, tuple) else (lines,)
