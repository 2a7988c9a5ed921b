"""Evaluates a traced function so that it also returns the values of its lines, or continues with other values.

Equations that contain no requested value are evaluated unchanged. A loop that contains one is rebuilt: it also returns
the requested values, stacked or only of the requested layers, and counts its iterations, to know where to replace.
"""

import collections
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, Var, jaxpr_as_fun
from jax.extend.core.primitives import cond_p, jit_p, scan_p, while_p

from algorithms.inside.parts import Part, Turn, edited, in_range_or_nan, mapped_first, rows_first
from algorithms.loops import ONE_LOOP
from algorithms.machinery.named import named_p
from algorithms.machinery.naming import Site
from algorithms.machinery.varying import match_varying_axes


class Found(NamedTuple):
    """A named value of a program."""

    site: Site  # the statement that names it
    value: Any  # its shape and dtype where it is named
    mapped: int  # the number of its leading axes that come from `jax.vmap`
    loops: tuple[int, ...]  # the lengths of the loops around it, the outermost first
    differentiated: bool  # whether the program differentiates its computation
    times: int = 1  # how often it is computed in one iteration of the innermost loop
    within: str | None = None  # the primitive that makes it unreachable, such as "while"

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape in one iteration of the loops, ``[H, rows, …, columns]``."""
        return jax.eval_shape(lambda v: rows_first(v, self.site, self.mapped), self.value).shape


def found_in(jaxpr: Jaxpr) -> dict[Site, Found]:
    """The named values of a program, in the order of their first computation."""
    found = _found_in_a_turn(jaxpr)
    return {site: f._replace(loops=(f.times, *f.loops) if f.times > 1 else f.loops) for site, f in found.items()}


def _found_in_a_turn(jaxpr: Jaxpr) -> dict[Site, Found]:
    """The named values of one iteration; repeated computations are counted, not yet taken for a loop."""
    found: dict[Site, Found] = {}
    for eqn in jaxpr.eqns:
        for site, f in _found_in_equation(eqn).items():
            before = found.get(site)
            found[site] = f if before is None else before._replace(times=before.times + f.times)
    return found


def _found_in_equation(eqn: Any) -> dict[Site, Found]:
    here: dict[Site, Found] = {}
    if eqn.primitive is named_p:
        p = eqn.params
        here[p["site"]] = Found(p["site"], eqn.outvars[0].aval, p["mapped"], (), p["differentiated"])
    elif eqn.primitive is scan_p:
        inner = found_in(eqn.params["jaxpr"].jaxpr)
        here = {site: f._replace(loops=(eqn.params["length"], *f.loops), times=1) for site, f in inner.items()}
    elif _is_one_loop(eqn):
        for of_stack, stacks in _stacks(eqn):
            here |= {site: f._replace(loops=(stacks[site][1], *f.loops[1:])) for site, f in of_stack.items()}
    elif not _is_computed_again(eqn):
        for inner in _jaxprs_in(eqn):
            here |= _found_in_a_turn(inner)
        if eqn.primitive not in (jit_p, cond_p) and not _is_checkpoint(eqn):
            here = {site: f._replace(within=f.within or eqn.primitive.name) for site, f in here.items()}
    return here


def _is_one_loop(eqn: Any) -> bool:
    """Whether an equation is a program whose loops count as one loop over the layers."""
    return eqn.primitive is jit_p and eqn.params["name"] == ONE_LOOP


def _stacks(eqn: Any) -> list[tuple[dict[Site, Found], dict[Site, tuple[int, int]]]]:
    """The named values of each equation of such a program, and `Turn.stacks` of these."""
    found = [_found_in_equation(inner) for inner in eqn.params["jaxpr"].jaxpr.eqns]
    lengths = collections.Counter()
    firsts = []
    for of_stack in found:
        firsts.append({site: lengths[site] for site in of_stack})
        lengths.update({site: f.loops[0] for site, f in of_stack.items()})
    return [
        (f, {site: (n, lengths[site]) for site, n in first.items()}) for f, first in zip(found, firsts, strict=True)
    ]


def _is_computed_again(eqn: Any) -> bool:
    """Whether an equation recomputes the forward pass within the backward pass, because of `jax.checkpoint`."""
    return _is_checkpoint(eqn) and eqn.params["differentiated"]


class Kept(NamedTuple):
    """Recorded values, and the number of loops around them that they have already left."""

    value: Array
    loops: int


jax.tree_util.register_pytree_node(Kept, lambda k: ((k.value,), k.loops), lambda loops, c: Kept(*c, loops))

Seen = dict[int, list[Kept]]
"""The recorded values of each request, one for each visit of its statement."""


class _Visits:
    """How often each site is visited in one iteration of a loop, in total and so far."""

    def __init__(self, jaxpr: Jaxpr) -> None:
        self.of_turn = {site: f.times for site, f in _found_in_a_turn(jaxpr).items() if not f.loops}
        self.so_far: collections.Counter[Site] = collections.Counter()

    def next(self, site: Site) -> Turn:
        self.so_far[site] += 1
        return Turn(self.so_far[site] - 1, self.of_turn[site])


class Evaluator:
    """Evaluates a program with requests and edits.

    Args:
        requests: the parts to record.
        edits: the parts to replace, each with the replacement that `parts.edited` takes, applied in this order.
    """

    def __init__(self, requests: list[Part], edits: list[tuple[Part, Any]]) -> None:
        self.requests, self.edits = requests, edits
        self.stacks: dict[int, Any] = {}  # `Turn.stacks` of a loop's equation, by its identity
        self.sites = {part.site for part in (*requests, *(part for part, _ in edits))}

    def run(self, program: ClosedJaxpr, arguments: list[Any]) -> tuple[list[Any], list[Array]]:
        """The program's outputs, and the requested values."""
        out, seen = self._turn(program.jaxpr, program.consts, arguments, ())
        return out, [seen[i].value for i in range(len(self.requests))]

    def _turn(self, jaxpr: Jaxpr, consts: Any, arguments: Any, turns: tuple[Turn, ...]) -> tuple[list, dict[int, Kept]]:
        """One iteration of a loop, or a whole program; repeated visits of a statement are stacked."""
        out, seen = self._evaluate(jaxpr, consts, arguments, turns, _Visits(jaxpr))
        return out, {i: self._stacked(i, visits) for i, visits in seen.items()}

    def _stacked(self, i: int, visits: list[Kept]) -> Kept:
        if len(visits) == 1:
            return visits[0]
        part, value, loops = self.requests[i], [kept.value for kept in visits], visits[0].loops
        shapes = {v.shape for v in value}
        if len(shapes) > 1:
            raise ValueError(
                f"{part.where}: expected one shape, since it is computed {len(visits)} times, got "
                f"{' and '.join(str(list(s)) for s in sorted(shapes))}; record each call by itself"
            )
        value = jnp.stack(value)
        if self._selects(i, loops):
            value = in_range_or_nan(value[part.layers(len(value))], part.where.layer, len(value))
        return Kept(value, loops + 1)

    def _joined(self, i: int, of_stacks: list[Kept]) -> Kept:
        """The values of one loop over the layers from those of the loops that count as one."""
        values, loops = [kept.value for kept in of_stacks], of_stacks[0].loops
        is_chosen = self._selects(i, loops - 1)
        shapes = {v.shape[0 if is_chosen else 1 :] for v in values}
        if len(shapes) > 1:
            raise ValueError(
                f"{self.requests[i].where}: expected one shape in all layers, got "
                f"{' and '.join(str(list(s)) for s in sorted(shapes))}; record a function with the layers of one kind"
            )
        return Kept(jax.tree.reduce(jnp.add, values) if is_chosen else jnp.concatenate(values), loops)

    def _selects(self, i: int, loops: int) -> bool:
        """Whether the next loop around a value is the loop over the layers, and only some layers are requested."""
        return self.requests[i].where.layer is not None and loops == 0

    def _evaluate(
        self, jaxpr: Jaxpr, consts: Any, arguments: Any, turns: tuple[Turn, ...], visits: _Visits
    ) -> tuple[list[Any], Seen]:
        values: dict[Any, Any] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *arguments], strict=True))
        seen: Seen = collections.defaultdict(list)

        def read(v):
            return v.val if isinstance(v, Literal) else values[v]

        for is_observed, eqns in itertools.groupby(jaxpr.eqns, self._is_observed):
            if not is_observed:
                program = _subprogram(jaxpr, list(eqns))
                outputs = jaxpr_as_fun(program)(*map(read, program.jaxpr.invars))
                values.update(zip(program.jaxpr.outvars, outputs, strict=True))
                continue
            for eqn in eqns:
                outputs, inner = self._observed(eqn, [read(v) for v in eqn.invars], turns, visits)
                for i, kept in inner.items():
                    seen[i] += kept
                values.update(zip(eqn.outvars, outputs, strict=True))
        return [read(v) for v in jaxpr.outvars], dict(seen)

    def _is_observed(self, eqn: Any) -> bool:
        """Whether an equation names, or contains, a value that is requested or edited."""
        if eqn.primitive is named_p:
            return eqn.params["site"] in self.sites
        if _is_computed_again(eqn):
            return False
        return any(self._is_observed(inner) for jaxpr in _jaxprs_in(eqn) for inner in jaxpr.eqns)

    def _observed(self, eqn: Any, inputs: list[Any], turns: tuple[Turn, ...], visits: _Visits) -> tuple[Any, Seen]:
        p = eqn.params
        if eqn.primitive is named_p:
            return self._named(p, inputs[0], turns, visits)
        if _is_one_loop(eqn):
            self.stacks |= {id(e): s for e, (_, s) in zip(p["jaxpr"].jaxpr.eqns, _stacks(eqn), strict=True)}
            out, seen = self._evaluate(p["jaxpr"].jaxpr, p["jaxpr"].consts, inputs, turns, visits)
            return out, {i: [self._joined(i, of_stacks)] for i, of_stacks in seen.items()}
        if eqn.primitive is jit_p:
            inputs = _placed(inputs, p["in_shardings"])
            out, seen = self._evaluate(p["jaxpr"].jaxpr, p["jaxpr"].consts, inputs, turns, visits)
            return _placed(out, p["out_shardings"]), seen
        if _is_checkpoint(eqn):
            evaluate = jax.checkpoint(
                lambda *inputs: self._evaluate(p["jaxpr"], (), inputs, turns, visits),
                prevent_cse=p["prevent_cse"],
                policy=p["policy"],
            )
            return evaluate(*inputs)
        if eqn.primitive is scan_p:
            return self._scan(eqn, inputs, turns)
        if eqn.primitive is cond_p:
            return self._cond(p, inputs, turns, visits)
        assert eqn.primitive is while_p, eqn.primitive  # `_Program.part` refuses values inside other primitives
        return self._while(p, inputs, turns), {}

    def _named(self, p: Any, value: Array, turns: tuple[Turn, ...], visits: _Visits) -> tuple[list[Array], Seen]:
        site, visit = p["site"], visits.next(p["site"])
        turns = tuple(turn.of(site) for turn in turns)
        turns = (*turns, visit) if visit.length > 1 else turns  # a Python loop
        value = rows_first(value, site, p["mapped"])
        for part, new in self.edits:
            if part.site == site:
                value = edited(part, value, new, turns)
        seen = {i: [Kept(part.of(value), 0)] for i, part in enumerate(self.requests) if part.site == site}
        return [named_p.bind(mapped_first(value, site, p["mapped"]), **p)], seen

    def _scan(self, eqn: Any, inputs: list[Any], turns: tuple[Turn, ...]) -> tuple[list[Any], Seen]:
        p, body, length = eqn.params, eqn.params["jaxpr"], eqn.params["length"]
        m = len(inputs) - _sliced(eqn.invars, body.jaxpr.invars)
        n_carry = len(eqn.outvars) - _sliced(eqn.outvars, body.jaxpr.outvars)
        consts, carry, xs = inputs[: m - n_carry], inputs[m - n_carry : m], inputs[m:]
        stacks = self.stacks.get(id(eqn))

        def length_of(i):
            return Turn(0, length, stacks).of(self.requests[i].site).length

        def layers_of(i):
            return self.requests[i].layers(length_of(i))

        def one(carry, number, x):
            around = (*turns, Turn(number, length, stacks))
            out, seen = self._turn(body.jaxpr, body.consts, [*consts, *carry, *x], around)
            some = {i: k for i, k in seen.items() if self._selects(i, k.loops)}
            return out[:n_carry], out[n_carry:], some, {i: k for i, k in seen.items() if i not in some}

        def turn(state, indexed):
            carry, chosen = state
            number, x = indexed
            carry, y, some, every = one(carry, number, x)
            numbers = {i: Turn(number, length, stacks).of(self.requests[i].site).number for i in some}
            chosen = {i: _chosen(chosen[i], k.value, numbers[i], layers_of(i)) for i, k in some.items()}
            return (carry, chosen), (y, every)

        chosen: dict[int, Any] = {}
        if any(part.where.layer is not None for part in self.requests):
            shapes = jax.eval_shape(one, carry, jnp.asarray(0), [jax.tree.map(lambda a: a[0], x) for x in xs])[2]
            fronts = {i: jnp.shape(layers_of(i)) for i in shapes}
            chosen = {i: jnp.zeros((*fronts[i], *k.value.shape), k.value.dtype) for i, k in shapes.items()}
            chosen = match_varying_axes((chosen, inputs))[0]
        (carry, chosen), (ys, every) = jax.lax.scan(
            turn, (carry, chosen), (jnp.arange(length), xs), length=length, reverse=p["reverse"], unroll=p["unroll"]
        )
        chosen = {i: in_range_or_nan(v, self.requests[i].where.layer, length_of(i)) for i, v in chosen.items()}
        seen = {i: [Kept(k.value, k.loops + 1)] for i, k in every.items()}
        return [*carry, *ys], seen | {i: [Kept(value, 1)] for i, value in chosen.items()}

    def _cond(self, p: Any, inputs: list[Any], turns: tuple[Turn, ...], visits: _Visits) -> tuple[list[Any], Seen]:
        """Values that only some branches compute are 0 if another branch is taken."""
        which, *operands = inputs
        before = visits.so_far.copy()

        def branch(closed, shapes=None):
            def evaluate(*operands):
                visits.so_far = before.copy()
                out, seen = self._evaluate(closed.jaxpr, closed.consts, operands, turns, visits)
                zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes or {})
                return out, zeros | seen

            return evaluate

        shapes: dict[int, Any] = {}
        for closed in p["branches"]:
            shapes |= jax.eval_shape(branch(closed), *operands)[1]
        return jax.lax.switch(which, [branch(closed, shapes) for closed in p["branches"]], *operands)

    def _while(self, p: Any, inputs: list[Any], turns: tuple[Turn, ...]) -> list[Any]:
        n, m = p["cond_nconsts"], p["cond_nconsts"] + p["body_nconsts"]
        of_condition, of_body, state = inputs[:n], inputs[n:m], inputs[m:]
        condition, body = p["cond_jaxpr"], p["body_jaxpr"]
        return jax.lax.while_loop(
            lambda state: jaxpr_as_fun(condition)(*of_condition, *state)[0],
            lambda state: self._turn(body.jaxpr, body.consts, [*of_body, *state], turns)[0],
            state,
        )


def _sliced(around: Any, inside: Any) -> int:
    """How many of a loop's arguments, or results, are sliced; the parameters that say so vary between JAX versions."""
    return sum(outer.aval.ndim > inner.aval.ndim for outer, inner in zip(around, inside, strict=True))


def _chosen(chosen: Array, value: Array, number: Array, layers: Any) -> Array:
    """The values kept so far, updated by this layer's value if the layer is one of those chosen."""
    is_this = number == jnp.asarray(layers)
    is_this = is_this.reshape(*is_this.shape, *(1,) * value.ndim)
    return jnp.where(is_this, value.reshape(*(1,) * (chosen.ndim - value.ndim), *value.shape), chosen)


def _placed(values: list[Any], shardings: Any) -> list[Any]:
    """Arrays constrained to the shardings of a compiled function."""
    return [
        jax.lax.with_sharding_constraint(v, s) if isinstance(s, jax.sharding.Sharding) else v
        for v, s in zip(values, shardings, strict=True)
    ]


def _is_checkpoint(eqn: Any) -> bool:
    """Whether an equation is of ``jax.checkpoint``, whose primitive is public from JAX 0.8 on only."""
    return eqn.primitive.name == "remat2"


def _jaxprs_in(eqn: Any) -> Iterator[Jaxpr]:
    """The programs in an equation's parameters."""
    for value in eqn.params.values():
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(one, (Jaxpr, ClosedJaxpr)):
                yield one if isinstance(one, Jaxpr) else one.jaxpr


def _subprogram(jaxpr: Jaxpr, eqns: list[Any]) -> ClosedJaxpr:
    """Consecutive equations of a program, as a program; hand-derived rules stay intact in it."""
    made = [v for eqn in eqns for v in eqn.outvars if type(v) is Var]  # others, of a subclass, are dropped
    own = set(made)
    read: Iterator[Any] = (v for eqn in eqns for v in eqn.invars if not isinstance(v, Literal))
    needed = list(dict.fromkeys(v for v in read if v not in own))
    debug_info = jaxpr.debug_info.with_unknown_names()
    return ClosedJaxpr(jaxpr.replace(constvars=[], invars=needed, outvars=made, eqns=eqns, debug_info=debug_info), [])
