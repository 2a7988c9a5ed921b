"""Evaluates a traced function so that it also returns the values of its lines, or continues with other values.

Equations that contain no requested value are evaluated unchanged. A loop that contains one is rebuilt: it also returns
the requested values, stacked or only of the requested layers, and counts its iterations, to know where to replace.
"""

import collections
import itertools
from collections.abc import Container, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, Var, jaxpr_as_fun
from jax.extend.core.primitives import cond_p, jit_p, scan_p, while_p

from algorithms.inside.parts import Part, Turn, edited, in_range_or_nan, mapped_first, rows_first
from algorithms.machinery.devices import match_varying_axes
from algorithms.machinery.naming import Site
from algorithms.machinery.primitives import named_p


class Found(NamedTuple):
    """A named value of a program."""

    site: Site  # the statement that names it
    value: Any  # its shape and dtype where it is named
    mapped: int  # the number of its leading axes that come from `jax.vmap`
    loops: tuple[int, ...]  # the lengths of the loops around it, the outermost first
    differentiated: bool  # whether the program differentiates its computation
    times: int = 1  # how often it is computed in one iteration of the innermost of these
    within: str | None = None  # the primitive that makes it unreachable, such as "while"

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape in one iteration of the loops, ``[H, rows, …, columns]``."""
        return jax.eval_shape(lambda v: rows_first(v, self.site, self.mapped), self.value).shape


def found_in(jaxpr: Jaxpr) -> dict[Site, Found]:
    """The named values of a program, in the order of their first computation."""
    found = _found_in_a_turn(jaxpr)
    return {site: _complete(f, found) for site, f in found.items() if site.symbol}


def _complete(f: Found, found: dict[Site, Found]) -> Found:
    """A value whose repeated computations count as loops; all layers of a pass are one loop."""
    if f.site.layers not in found or f.loops:
        return f._replace(loops=(f.times, *f.loops) if f.times > 1 else f.loops, times=1)
    first: Any = f.site.layers
    passes = found[first].times
    return f._replace(loops=(*([passes] if passes > 1 else []), f.times // passes), times=1)


def _is_loop_over_layers(site: Site, visits: Container[Site]) -> bool:
    """Whether a loop that visits these sites in each iteration is part of the site's pass through the layers."""
    return site.layers is not None and site.layers not in visits


def _found_in_a_turn(jaxpr: Jaxpr) -> dict[Site, Found]:
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
        n, inner = eqn.params["length"], _found_in_a_turn(eqn.params["jaxpr"].jaxpr)
        for site, f in inner.items():
            if _is_loop_over_layers(site, inner) and not f.loops:
                here[site] = f._replace(times=n * f.times)
            else:
                whole = _complete(f, inner)
                here[site] = whole._replace(loops=(n, *whole.loops))
    elif not _is_computed_again(eqn):
        for inner in _jaxprs_in(eqn):
            here |= _found_in_a_turn(inner)
        if eqn.primitive not in (jit_p, cond_p) and not _is_checkpoint(eqn):
            here = {site: f._replace(within=f.within or eqn.primitive.name) for site, f in here.items()}
    return here


def _is_computed_again(eqn: Any) -> bool:
    """Whether an equation recomputes the forward pass within the backward pass, because of `jax.checkpoint`."""
    return _is_checkpoint(eqn) and eqn.params["differentiated"]


class Recording(NamedTuple):
    """Recorded values."""

    value: Array
    layers: int = 0  # of how many layers, if not yet of all in a pass; unless some are chosen, they are the first axis


jax.tree_util.register_pytree_node(Recording, lambda k: ((k.value,), k.layers), lambda n, values: Recording(*values, n))

Seen = dict[int, list[Recording]]
"""The recorded values of each request, one for each visit of its statement."""


class _Visits:
    """How often each site is visited in one iteration of a loop, in total and so far."""

    def __init__(self, jaxpr: Jaxpr) -> None:
        self.of_turn = {site: f.times for site, f in _found_in_a_turn(jaxpr).items() if not f.loops}
        self.so_far: collections.Counter[Site] = collections.Counter()

    def next(self, site: Site) -> Turn:
        self.so_far[site] += 1
        return Turn(self.so_far[site] - 1, self.of_turn[site])


class _Loop(NamedTuple):
    turn: Turn
    before: collections.Counter[Site]  # how often each site was visited before the loop, in an iteration around it
    visits: dict[Site, int]  # and is in each iteration of it
    around: dict[Site, int]  # and in one around it


def _turns_of(site: Site, loops: tuple[_Loop, ...], visit: Turn, of_turn: dict[Site, int]) -> tuple[Turn, ...]:
    """The loops around a visit of a statement, outermost first; all loops over layers count as one, the last."""
    innermost = list(itertools.takewhile(lambda loop: _is_loop_over_layers(site, loop.visits), reversed(loops)))
    n_outer = len(loops) - len(innermost)
    outer, inner = tuple(loop.turn for loop in loops[:n_outer]), loops[n_outer:]
    if site.layers is None:
        return (*outer, visit) if visit.length > 1 else outer  # a Python loop
    number = visit.number + sum(loop.before[site] + loop.turn.number * loop.visits[site] for loop in inner)
    visits = inner[0].around if inner else of_turn
    first: Any = site.layers
    passes = visits[first]
    n = visits[site] // passes
    return (*outer, *([Turn(number // n, passes)] if passes > 1 else []), Turn(number % n, n))


class Evaluator:
    """Evaluates a program with requests and edits.

    Args:
        requests: the parts to record.
        edits: the parts to replace, each with a replacement as in `parts.edited`, applied in this order.
    """

    def __init__(self, requests: list[Part], edits: list[tuple[Part, Any]]) -> None:
        self.requests, self.edits = requests, edits
        self.sites = {part.site for part in (*requests, *(part for part, _ in edits))}

    def run(self, program: ClosedJaxpr, arguments: list[Any]) -> tuple[list[Any], list[Array]]:
        """The program's outputs, and the requested values."""
        out, seen = self._turn(program.jaxpr, program.consts, arguments, ())
        return out, [seen[i].value for i in range(len(self.requests))]

    def _turn(
        self, jaxpr: Jaxpr, consts: Any, arguments: Any, loops: tuple[_Loop, ...]
    ) -> tuple[list[Any], dict[int, Recording]]:
        """One iteration of a loop, or a whole program; repeated visits of a statement are stacked."""
        visits = _Visits(jaxpr)
        out, seen = self._evaluate(jaxpr, consts, arguments, loops, visits)
        return out, {i: self._stacked(i, of, visits) for i, of in seen.items()}

    def _stacked(self, i: int, recorded: list[Recording], visits: _Visits) -> Recording:
        if recorded[0].layers:
            first: Any = self.requests[i].site.layers
            return self._of_layers(i, recorded, visits.of_turn.get(first, 0))
        if len(recorded) == 1:
            return recorded[0]
        self._check_one_shape(i, recorded, f"since it is computed {len(recorded)} times", "each call by itself")
        return Recording(jnp.stack([k.value for k in recorded]))

    def _check_one_shape(self, i: int, recorded: list[Recording], where: str, instead: str, first: int = 0) -> None:
        shapes = {k.value.shape[first:] for k in recorded}
        if len(shapes) > 1:
            raise ValueError(
                f"{self.requests[i].where}: expected one shape {where}, got "
                f"{' and '.join(str(list(s)) for s in sorted(shapes))}; record {instead}"
            )

    def _of_layers(self, i: int, recorded: list[Recording], passes: int) -> Recording:
        """The values of consecutive visits: of all layers in one or several passes; 0 passes: of some layers."""
        layer, found = self.requests[i].where.layer, []
        first = 0 if layer is not None else 1
        self._check_one_shape(i, recorded, "in all layers", "a function with the layers of one kind", first)
        n = sum(k.layers for k in recorded)
        length, so_far = n // (passes or 1), []
        for k in recorded:
            so_far.append(k)
            if sum(k.layers for k in so_far) == length:
                values = [k.value for k in so_far]
                value = jnp.concatenate(values) if layer is None else jax.tree.reduce(jnp.add, values)
                found.append(value if layer is None or not passes else in_range_or_nan(value, layer, length))
                so_far = []
        if not passes:
            return Recording(found[0], n)
        return Recording(found[0] if passes == 1 else jnp.stack(found))

    def _evaluate(
        self, jaxpr: Jaxpr, consts: Any, arguments: Any, loops: tuple[_Loop, ...], visits: _Visits
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
                outputs, inner = self._observed(eqn, [read(v) for v in eqn.invars], loops, visits)
                for i, recorded in inner.items():
                    seen[i] += recorded
                values.update(zip(eqn.outvars, outputs, strict=True))
        return [read(v) for v in jaxpr.outvars], dict(seen)

    def _is_observed(self, eqn: Any) -> bool:
        if eqn.primitive is named_p:
            return eqn.params["site"] in self.sites
        if _is_computed_again(eqn):
            return False
        return any(self._is_observed(inner) for jaxpr in _jaxprs_in(eqn) for inner in jaxpr.eqns)

    def _observed(self, eqn: Any, inputs: list[Any], loops: tuple[_Loop, ...], visits: _Visits) -> tuple[Any, Seen]:
        p = eqn.params
        if eqn.primitive is named_p:
            return self._named(p, inputs[0], loops, visits)
        if eqn.primitive is jit_p:
            inputs = _placed(inputs, p["in_shardings"])
            out, seen = self._evaluate(p["jaxpr"].jaxpr, p["jaxpr"].consts, inputs, loops, visits)
            return _placed(out, p["out_shardings"]), seen
        if _is_checkpoint(eqn):
            evaluate = jax.checkpoint(
                lambda *inputs: self._evaluate(p["jaxpr"], (), inputs, loops, visits),
                prevent_cse=p["prevent_cse"],
                policy=p["policy"],
            )
            return evaluate(*inputs)
        if eqn.primitive is scan_p:
            return self._scan(eqn, inputs, loops, visits)
        if eqn.primitive is cond_p:
            return self._cond(p, inputs, loops, visits)
        assert eqn.primitive is while_p, eqn.primitive  # `_Program.part` refuses values inside other primitives
        return self._while(p, inputs, loops), {}

    def _named(self, p: Any, value: Array, loops: tuple[_Loop, ...], visits: _Visits) -> tuple[list[Array], Seen]:
        site = p["site"]
        turns = _turns_of(site, loops, visits.next(site), visits.of_turn)
        value = rows_first(value, site, p["mapped"])
        for part, new in self.edits:
            if part.site == site:
                value = edited(part, value, new, turns)
        seen = {i: [_visited(part, value, turns)] for i, part in enumerate(self.requests) if part.site == site}
        return [named_p.bind(mapped_first(value, site, p["mapped"]), **p)], seen

    def _scan(self, eqn: Any, inputs: list[Any], loops: tuple[_Loop, ...], visits: _Visits) -> tuple[list[Any], Seen]:
        p, body, length = eqn.params, eqn.params["jaxpr"], eqn.params["length"]
        m = len(inputs) - _sliced(eqn.invars, body.jaxpr.invars)
        n_carry = len(eqn.outvars) - _sliced(eqn.outvars, body.jaxpr.outvars)
        consts, carry, xs = inputs[: m - n_carry], inputs[m - n_carry : m], inputs[m:]
        before, of_body = visits.so_far.copy(), _Visits(body.jaxpr).of_turn
        some = {site: n * length for site, n in of_body.items() if _is_loop_over_layers(site, of_body)}
        visits.so_far.update(some)

        def one(carry, number, x):
            around = (*loops, _Loop(Turn(number, length), before, of_body, visits.of_turn))
            out, seen = self._turn(body.jaxpr, body.consts, [*consts, *carry, *x], around)
            summed = {i: k for i, k in seen.items() if k.layers and self.requests[i].where.layer is not None}
            return out[:n_carry], out[n_carry:], summed, {i: k for i, k in seen.items() if i not in summed}

        def turn(state, indexed):
            carry, sums = state
            number, x = indexed
            carry, y, summed, every = one(carry, number, x)
            return (carry, {i: sums[i] + k.value for i, k in summed.items()}), (y, every)

        sums, summed = {}, {}
        if any(part.where.layer is not None for part in self.requests):
            first = [jax.tree.map(lambda a: a[0], x) for x in xs]
            summed = jax.eval_shape(one, carry, jnp.asarray(0), first)[2]
            sums = {i: jnp.zeros(k.value.shape, k.value.dtype) for i, k in summed.items()}
            sums = match_varying_axes((sums, inputs))[0]
        (carry, sums), (ys, every) = jax.lax.scan(
            turn, (carry, sums), (jnp.arange(length), xs), length=length, reverse=p["reverse"], unroll=p["unroll"]
        )
        seen = {i: [_after_loop(k, length)] for i, k in every.items()}
        return [*carry, *ys], seen | {i: [Recording(v, summed[i].layers * length)] for i, v in sums.items()}

    def _cond(self, p: Any, inputs: list[Any], loops: tuple[_Loop, ...], visits: _Visits) -> tuple[list[Any], Seen]:
        """Evaluates a conditional; values of branches that are not taken are 0."""
        which, *operands = inputs
        before = visits.so_far.copy()

        def branch(closed, shapes=None):
            def evaluate(*operands):
                visits.so_far = before.copy()
                out, seen = self._evaluate(closed.jaxpr, closed.consts, operands, loops, visits)
                zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes or {})
                return out, zeros | seen

            return evaluate

        shapes: dict[int, Any] = {}
        for closed in p["branches"]:
            shapes |= jax.eval_shape(branch(closed), *operands)[1]
        return jax.lax.switch(which, [branch(closed, shapes) for closed in p["branches"]], *operands)

    def _while(self, p: Any, inputs: list[Any], loops: tuple[_Loop, ...]) -> list[Any]:
        n, m = p["cond_nconsts"], p["cond_nconsts"] + p["body_nconsts"]
        of_condition, of_body, state = inputs[:n], inputs[n:m], inputs[m:]
        condition, body = p["cond_jaxpr"], p["body_jaxpr"]
        return jax.lax.while_loop(
            lambda state: jaxpr_as_fun(condition)(*of_condition, *state)[0],
            lambda state: self._turn(body.jaxpr, body.consts, [*of_body, *state], loops)[0],
            state,
        )


def _sliced(around: Any, inside: Any) -> int:
    """The number of a loop's sliced arguments, or results; their parameters differ between JAX versions."""
    return sum(outer.aval.ndim > inner.aval.ndim for outer, inner in zip(around, inside, strict=True))


def _visited(part: Part, value: Array, turns: tuple[Turn, ...]) -> Recording:
    """The recording of one visit: of one layer, or of the chosen layers, 0 for all others."""
    value = part.of(value)
    if part.site.layers is None:
        return Recording(value)
    if part.where.layer is None:
        return Recording(value[None], 1)
    is_this = turns[-1].number == jnp.asarray(part.layers(turns[-1].length))
    return Recording(jnp.where(is_this.reshape(*is_this.shape, *(1,) * value.ndim), value, 0), 1)


def _after_loop(recorded: Recording, length: int) -> Recording:
    """The recording of all iterations, from their stacked recordings."""
    if not recorded.layers:
        return recorded
    return Recording(recorded.value.reshape(-1, *recorded.value.shape[2:]), recorded.layers * length)


def _placed(values: list[Any], shardings: Any) -> list[Any]:
    return [
        jax.lax.with_sharding_constraint(v, s) if isinstance(s, jax.sharding.Sharding) else v
        for v, s in zip(values, shardings, strict=True)
    ]


def _is_checkpoint(eqn: Any) -> bool:
    """Whether an equation is of ``jax.checkpoint``, whose primitive is public from JAX 0.8 on only."""
    return eqn.primitive.name == "remat2"


def _jaxprs_in(eqn: Any) -> Iterator[Jaxpr]:
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
