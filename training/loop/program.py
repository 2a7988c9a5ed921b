"""The functions of a training: a plan, and the compiled ones with settings that fit into memory."""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from training.data.loading import RunData
from training.evaluation.held_out import check_predicts
from training.loop import cost
from training.loop.diagnosis import TrainingError, not_finite
from training.loop.optimizers import optimizer_from
from training.loop.train_step import TrainState, batch_loss, init_state, make_step
from training.mesh.padding import padded, unpadded
from training.mesh.placement import Placement, shardings
from training.runs.directory import Description
from training.settings import Settings
from training.tasks import TASKS
from training.tasks.low_rank import init_adapter, merged, scale_of
from training.tasks.models import init_model
from training.tasks.objectives import make_totals, resolved

RUN_ONCE: dict[str, dict[str, str | bool]] = {"cpu": {"xla_backend_optimization_level": "2"}}
"""Platform → compiler options of programs that run once: LLVM's highest level doubles their compile time.

They would raise the level where JAX_DISABLE_MOST_OPTIMIZATIONS has lowered it.
"""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """The functions of a training, and where its arrays are."""

    description: Description
    data: RunData
    placement: Placement
    initial: Any  # the parameters to start from; None: random ones
    frozen: Any  # θ, if an adapter of it is trained; else None
    schedule: optax.Schedule
    optimizer: optax.GradientTransformation

    @staticmethod
    def of(description: Description, data: RunData, initial: Any = None) -> "Plan":
        """Return the plan from `initial` parameters (None: random ones), or raise ValueError."""
        settings, placement, frozen = description.settings, Placement(description.settings.mesh), None
        schedule, optimizer = optimizer_from(settings)
        for sample in (0, settings.eval_batches):
            check_predicts(TASKS[settings.task].objective.weights, data.validation.evaluation_batches(sample=sample))
        if settings.lora_rank:
            theta = padded(initial, description.config.N_V, settings.vocabulary_multiple)
            frozen = jax.tree.map(jax.device_put, theta, shardings(placement.placed(theta)))
            initial = None
        here = {"data": data, "placement": placement, "initial": initial, "frozen": frozen}
        return Plan(description=description, **here, schedule=schedule, optimizer=optimizer)

    @property
    def settings(self) -> Settings:
        """The settings of the training."""
        return self.description.settings

    @functools.cached_property
    def key(self) -> Any:
        """The key of the updates' random values."""
        return jax.random.fold_in(jax.random.key(self.settings.seed), 1)

    @functools.cached_property
    def rows(self) -> slice:
        """The sequences of a batch that this process needs."""
        return self.placement.rows(self.settings.batch_size)

    @property
    def _objective(self) -> Any:
        return TASKS[self.settings.task].objective

    @property
    def _N_V(self) -> int | None:
        """The vocabulary without its padding, if it may have one."""
        padding = self.settings.vocabulary_multiple > 1 and not self.description.labels
        return self.description.config.N_V if padding else None

    def _begin(self, key: Any, initial: Any) -> TrainState:
        s, config = self.settings, self.description.config
        if self.frozen is not None:
            shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), self.frozen)
            params = init_adapter(key, shapes, rank=s.lora_rank, matrices=s.lora_matrices)
        else:
            N_C = len(self.description.labels)
            params = init_model(key, s.task, config, scheme=s.init, N_C=N_C) if initial is None else initial
            params = padded(params, config.N_V, s.vocabulary_multiple)
        return init_state(params, self.optimizer, ema_decay=s.ema_decay, dtype=s.dtype)

    @functools.cached_property
    def _init_key(self) -> Any:
        return jax.random.fold_in(jax.random.key(self.settings.seed), 0)

    @functools.cached_property
    def template(self) -> Any:
        """The shapes of the state, with their shardings."""
        return self.placement.placed(jax.eval_shape(self._begin, self._init_key, self.initial))

    @property
    def begin(self) -> Callable[[Any, Any], TrainState]:
        """The compiled function that makes the first state, of a key and the initial parameters."""
        is_quick = jax.config.read("jax_disable_most_optimizations")
        options = None if is_quick else RUN_ONCE.get(jax.default_backend())
        return jax.jit(self._begin, out_shardings=shardings(self.template), compiler_options=options)

    def first_state(self) -> TrainState:
        """Return the state before the first update."""
        return self.begin(self._init_key, self.initial)

    def batches(self, step: int) -> Iterator[Any]:
        """Yield the batches of the updates from a step on."""
        return map(self._divided, self.data.train.batches(step, rows=self.rows))

    def held_out(self, sample: int = 0) -> Iterator[Any]:
        """Yield all held-out batches, or a fixed random `sample` of this many."""
        return map(self._divided, self.data.validation.evaluation_batches(rows=self.rows, sample=sample))

    @property
    def samples(self) -> bool:
        """Whether evaluations before the end are on a part of the held-out data."""
        return 0 < self.settings.eval_batches < self.data.validation.n_steps

    def _divided(self, batch: Any) -> Any:
        return self.placement.batch(batch, self.settings.batch_size)

    def arguments(self, state: Any, step: int, batch: Any = None) -> tuple[Any, ...]:
        """Return the arguments of the update after `step` others, with the batch of that step unless one is given."""
        if batch is None:
            batch = self._divided(self.data.train.batch(step, rows=self.rows))
        return state, batch, np.int32(step), self.key, self.frozen

    def compiled_step(self) -> Any:
        """Compile the update."""
        step = make_step(self._objective, self.optimizer, self.schedule, self.settings, N_V=self._N_V)
        options = {"out_shardings": (shardings(self.template), None), "donate_argnums": 0}
        return self.placement.compiled(step, self.arguments(self.template, 0), **options)

    def compiled_totals(self, model: Any) -> Any:
        """Compile the sums over a held-out batch."""
        totals = make_totals(self._objective, self.settings, N_V=self._N_V)
        return self.placement.compiled(totals, (model, next(self.held_out())))

    def peak(self, clock: Callable[[], float]) -> float:
        """Return the FLOP/s of all devices."""
        peak = self.settings.peak or cost.matmul_peak(clock, resolved(self.settings.dtype))
        return peak * (self.placement.n_devices if jax.default_backend() != "cpu" else 1)  # CPU devices share cores

    @property
    def flops(self) -> int:
        """The FLOPs of an update's matrix products."""
        s = self.settings
        return cost.step_flops(s.task, self.description.config, batch_size=s.batch_size, l=s.l_max)

    def model(self, state: TrainState) -> Any:
        """Return the model to evaluate: the evaluated parameters, merged into the frozen ones if there are any."""
        params = evaluated(state)
        if self.frozen is None:
            return params
        merge = jax.jit(merged, static_argnums=2, out_shardings=shardings(self.frozen))
        with self.placement.in_use():
            return merge(self.frozen, params, scale_of(self.settings))

    def gathered(self, state: TrainState) -> Any:
        """Return the model to evaluate, on a single device."""
        return self.unpadded(self.placement.gathered(self.model(state)))

    def trained(self, state: TrainState) -> Any:
        """Return the evaluated parameters, or the adapter, on a single device."""
        return self.gathered(state) if self.frozen is None else self.placement.gathered(evaluated(state))

    def unpadded(self, params: Any) -> Any:
        """Return parameters without the padding of their vocabulary."""
        return unpadded(params, self.description.config.N_V, self.settings.vocabulary_multiple)

    def diagnosis(self, state: TrainState, step: int, loss: float, rate: float, saved: int | None) -> TrainingError:
        """Recompute the gradient of a bad update, which left the state unchanged, and return the error."""
        gradient = jax.jit(batch_loss(self._objective, self.settings, N_V=self._N_V))
        with self.placement.in_use():
            _, gradients, _ = gradient(*self.arguments(state.params, step - 1))
        return not_finite(step, loss, rate, self.placement.gathered(gradients), saved)

    def in_more_parts(self) -> "Plan":
        """Return the plan with a batch in more parts, which changes only rounding, or raise TrainingError."""
        before, settings = self.settings, cost.in_more_parts(self.settings)
        batch, parts = f"a batch of {before.batch_size} sequences", f"{before.accumulation_steps} parts"
        if jax.process_count() > 1:  # whose devices may differ in memory
            advice = "give larger accumulation_steps, remat all, or another mesh"
            raise TrainingError(f"not enough memory for {batch} in {parts}: {advice}")
        if settings is None:
            advice = "give a smaller l_max, remat all, or a smaller model"
            raise TrainingError(f"not enough memory for {batch}, not even in {parts}: {advice}")
        return dataclasses.replace(self, description=self.description._replace(settings=settings))


class Program(NamedTuple):
    """The compiled functions of a plan."""

    plan: Plan  # with the settings that fit into memory
    step: Any  # the update: (state, batch, step, key, frozen) → (state, metrics)
    totals: Any  # sums over a held-out batch: (model, batch) → sums
    peak: float  # the devices' FLOP/s

    @staticmethod
    def of(plan: Plan, state: TrainState, clock: Callable[[], float]) -> "Program":
        """Compile a plan."""
        return Program(plan, plan.compiled_step(), plan.compiled_totals(plan.model(state)), plan.peak(clock))

    @staticmethod
    def fitting(
        plan: Plan,
        state: TrainState,
        clock: Callable[[], float],
        run: Callable[[Callable[[], "Program"]], "Program"],
        split: Callable[[Plan], Plan],
    ) -> "Program":
        """Compile a plan, or the first that `split` makes of it that fits into memory; `run` calls the compiler."""
        while True:
            try:
                program = run(functools.partial(Program.of, plan, state, clock))
                if cost.needed(program.step) <= cost.limit(plan.placement.n_local_devices):
                    return program
            except jax.errors.JaxRuntimeError as error:
                if not cost.is_exhausted(error):
                    raise
            plan = split(plan)


def evaluated(state: TrainState) -> Any:
    """Return the parameters to evaluate: their moving average if there is one."""
    return state.params if state.ema is None else state.ema


def size(tree: Any) -> int:
    """Return the number of elements in a pytree's arrays."""
    return sum(array.size for array in jax.tree.leaves(tree))
