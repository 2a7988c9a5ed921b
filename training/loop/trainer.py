"""The training loop: updates, metrics, evaluations and checkpoints, with exact resumption.

Everything that determines the next update is in the checkpoint or follows from the step's number: the batch of step s
depends on (seed, s) alone, and its randomness is ``fold_in(key, s)``. So a run that is killed at any moment and
restarted with the same command gives, bit for bit, the losses and parameters of an uninterrupted one.
"""

import collections
import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from training.data.loading import RunData
from training.disk import reason
from training.evaluation.held_out import evaluate, perplexity
from training.loop import memory
from training.loop.diagnosis import TrainingError, explosion, loss_limit, not_finite
from training.loop.flops import active_parameters, matmul_peak, memory_in_use, step_flops
from training.loop.optimizers import optimizer_from
from training.loop.progress import Progress, Rates
from training.loop.train_step import StepMetrics, TrainState, batch_loss, init_state, make_step
from training.mesh.padding import padded, unpadded
from training.mesh.placement import Placement, shardings
from training.mesh.processes import Processes
from training.runs.checkpoints import Checkpoints, read_checkpoint, saved_steps
from training.runs.directory import Description, Run, RunDirectory
from training.runs.event_files import EventFile
from training.runs.interrupts import Interrupted, Interrupts
from training.runs.metrics import (
    MetricsLog,
    NoLog,
    Writer,
    cut,
    plot_losses,
    read_metrics,
    wandb_writer,
)
from training.tasks import TASKS, settings_to_json
from training.tasks.low_rank import init_adapter, merged, scale_of
from training.tasks.models import init_model
from training.tasks.objectives import make_totals

IN_FLIGHT = 2  # updates dispatched before the first one's result is read
FORWARDS = 4  # an update takes about as long as this many evaluations of a batch
RUN_ONCE: dict[str, dict[str, str | bool]] = {"cpu": {"xla_backend_optimization_level": "2"}}
"""Platform → compiler options of programs that run once: LLVM's highest level doubles their compile time."""
PROFILE_AFTER, PROFILED = 10, 5  # updates before the trace, and in it


class Facts(NamedTuple):
    """Facts about a training before its first update."""

    step: int  # updates already done
    parameters: int  # of the model
    trained: int  # trained parameters: all of the model's, or the low-rank ones
    tokens: int  # of the training data
    epochs: float  # passes over the training data
    device: str  # description of the devices
    seconds: float  # estimated duration of the remaining updates


class Preview(NamedTuple):
    """What an update would cost."""

    parameters: int  # of the model, with what `vocabulary_multiple` adds
    active: int  # of these, those that each token reads: of experts, only the chosen ones
    trained: int  # trained parameters: all of the model's, or the low-rank ones
    needed: int  # bytes on each device, by the compiler; 0 if it does not say
    limit: int  # bytes available on each device
    flops: int  # of the matrix products
    peak: float  # FLOP/s of a large matrix product, on all devices
    device: str  # description of the devices


class Observer(Protocol):
    """Receives training progress."""

    def began(self, facts: Facts) -> None:
        """The training begins or resumes."""

    def updated(self, step: int, line: dict[str, Any]) -> None:
        """An update is done; `line` has its metrics."""

    def evaluated(self, step: int, results: dict[str, float], run: Run | None) -> None:
        """An evaluation is done, of the model in `run`; None if no process has all of it."""

    def warned(self, message: str) -> None:
        """A non-fatal problem."""


class Trainer:
    """Trains the model of a run."""

    def __init__(
        self,
        description: Description,
        data: RunData,
        files: RunDirectory,
        *,
        interrupts: Interrupts,
        observer: Observer,
        clock: Callable[[], float],
        initial: Any = None,
        processes: Processes | None = None,
    ) -> None:
        """Make a trainer that starts from the `initial` parameters (None: random ones), which stay frozen if an adapter
        is trained. `processes` are those that train together (None: this one alone). Raises ValueError if the
        optimizer's settings do not fit together.
        """
        self._description, self._settings, self._data, self._files = description, description.settings, data, files
        self._interrupts, self._observer, self._clock = interrupts, observer, clock
        self._processes = processes or Processes()
        self._placement = Placement(self._settings.mesh)
        self._initial, self._frozen = (None, self._placed(initial)) if self._settings.lora_rank else (initial, None)
        self._rows = self._placement.rows(self._settings.batch_size)
        multiple, N_V = self._settings.vocabulary_multiple, description.config.N_V
        self._N_V = N_V if multiple > 1 and not description.labels else None
        self._schedule, self._optimizer = optimizer_from(self._settings)
        self._objective = TASKS[self._settings.task].objective
        seed = jax.random.key(self._settings.seed)
        self._init_key, self._key = jax.random.fold_in(seed, 0), jax.random.fold_in(seed, 1)
        self._limit = loss_limit(self._settings.explosion, len(description.labels) or description.config.N_V)
        self._in_flight: collections.deque[tuple[int, StepMetrics]] = collections.deque()
        self._progress = Progress()

    def train(self) -> dict[str, float]:
        """Train to the end, from the last checkpoint if there is one; return the figures of the trained parameters on
        all held-out data.

        Raises:
            Interrupted: a signal arrived; a checkpoint was saved.
            TrainingError: loss or gradient are not finite, the loss exploded, or a file cannot be written.
            CheckpointError: a checkpoint cannot be written, or none can be read.
        """
        try:
            with contextlib.ExitStack() as opened:
                return self._train(opened)
        except BrokenPipeError:
            raise  # the reader of the observer's output closed the pipe
        except OSError as error:
            raise TrainingError(
                f"cannot write to {self._files.path}: {reason(error)}; make room, and rerun the command to "
                + ("resume from the last checkpoint" if saved_steps(self._files.checkpoints) else "start over")
            ) from error

    def _train(self, opened: contextlib.ExitStack) -> dict[str, float]:
        settings, files = self._settings, self._files
        self._checkpoints = opened.enter_context(Checkpoints(files.checkpoints, max_to_keep=settings.max_to_keep))
        self._best = opened.enter_context(Checkpoints(files.best, max_to_keep=1)) if settings.patience else None
        self._restore_or_begin()
        log = MetricsLog(files.metrics, self._writers()) if self._processes.is_main else NoLog()
        self._log = opened.enter_context(contextlib.closing(log))
        try:
            self._compile()
            self._observer.began(self._facts())
            self._loop()
            return self._finish()
        except Interrupted:
            self._settle(most=0)
            self._save()
            raise

    def _placed(self, theta: Any) -> Any:
        """Frozen parameters, placed on the devices."""
        theta = padded(theta, self._description.config.N_V, self._settings.vocabulary_multiple)
        return jax.tree.map(jax.device_put, theta, shardings(self._placement.placed(theta)))

    def _writers(self) -> list[Writer]:
        settings, files = self._settings, self._files
        writers = [EventFile(files.tensorboard, self._progress.step)] if settings.tensorboard else []
        if settings.wandb:
            writers.append(wandb_writer(files.path, settings_to_json(settings)))
        return writers

    def _begin(self, key: Any, params: Any) -> TrainState:
        """The state before the first update; `params` are the parameters to start from (None: random ones)."""
        s, config = self._settings, self._description.config
        if self._frozen is not None:
            shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), self._frozen)
            params = init_adapter(key, shapes, rank=s.lora_rank, matrices=s.lora_matrices)
        else:
            if params is None:
                N_C = len(self._description.labels)
                params = init_model(key, s.task, config, scheme=s.init, N_C=N_C)
            params = padded(params, config.N_V, s.vocabulary_multiple)
        return init_state(params, self._optimizer, ema_decay=s.ema_decay, dtype=s.dtype)

    def _template(self) -> Any:
        """The shapes of the state, with their shardings."""
        return self._placement.placed(jax.eval_shape(self._begin, self._init_key, self._initial))

    def _restore_or_begin(self) -> None:
        template = self._template()
        self._where = shardings(template)
        restored = self._checkpoints.restore_latest(_items(template), self._observer.warned)
        if restored is None:
            self._cut_metrics(0)
            once = jax.jit(self._begin, out_shardings=self._where, compiler_options=RUN_ONCE.get(jax.default_backend()))
            self._state: TrainState = once(self._init_key, self._initial)
            return
        trees = restored.trees
        opt_state, healthy = trees["state"]
        self._state = TrainState(trees["params"], opt_state, healthy, trees.get("ema"), trees.get("loss_scale"))
        self._progress = Progress.from_json(restored.meta["progress"])
        if not self._cut_metrics(restored.meta["metrics_bytes"]):
            self._observer.warned(f"{self._files.metrics} is shorter than at the checkpoint: some metrics are lost")

    def _cut_metrics(self, size: int) -> bool:
        return not self._processes.is_main or cut(self._files.metrics, size)

    def _compile(self) -> None:
        """Compile the update, splitting the batch until it fits into memory."""
        while True:
            try:
                self._step, self._totals, peak = self._interrupts.run(self._compiled)
            except jax.errors.JaxRuntimeError as error:
                if not memory.is_exhausted(error):
                    raise
                self._split_batch()
                continue
            if memory.needed(self._step) <= memory.limit(self._placement.n_local_devices):
                break
            self._split_batch()
        settings = self._settings
        flops = step_flops(settings.task, self._description.config, batch_size=settings.batch_size, l=settings.l_max)
        self._rates = Rates(self._clock, flops=flops, peak=peak)

    def _split_batch(self) -> None:
        """Compute a batch in more parts, which changes only rounding, and record that in the run. Raises TrainingError
        if that is impossible.
        """
        before, settings = self._settings, memory.in_more_parts(self._settings)
        batch = f"a batch of {before.batch_size} sequences"
        if self._processes.count > 1:  # whose devices may differ in memory
            raise TrainingError(
                f"not enough memory for {batch} in {before.accumulation_steps} parts: give larger accumulation_steps, "
                "remat all, or another mesh"
            )
        if settings is None:
            raise TrainingError(
                f"not enough memory for {batch}, not even in {before.accumulation_steps} parts: give a smaller l_max, "
                "remat all, or a smaller model"
            )
        self._settings = settings
        self._description = self._description._replace(settings=settings)
        self._files.note(self._description)
        self._observer.warned(
            f"memory is short: each batch is computed in {settings.accumulation_steps} parts instead of "
            f"{before.accumulation_steps} (accumulation_steps)"
        )

    def _compiled(self) -> tuple[Any, Any, float]:
        """Return the compiled update, the compiled sums over a held-out batch, and the devices' peak FLOP/s."""
        totals = make_totals(self._objective, self._settings, N_V=self._N_V)
        return (
            self._compiled_step(self._state),
            self._placement.compiled(totals, (self._model(), next(self._held_out()))),
            self._peak(),
        )

    def _compiled_step(self, state: Any) -> Any:
        """Return the compiled update of a state, or of its shapes."""
        step = make_step(self._objective, self._optimizer, self._schedule, self._settings, N_V=self._N_V)
        of_step = state, self._batch(0), np.int32(0), self._key, self._frozen
        return self._placement.compiled(step, of_step, out_shardings=(self._where, None), donate_argnums=0)

    def _peak(self) -> float:
        """The FLOP/s of all devices."""
        peak = self._settings.peak or matmul_peak(self._clock, self._settings.dtype)
        return peak * (self._placement.n_devices if jax.default_backend() != "cpu" else 1)  # CPU devices share cores

    def preview(self) -> Preview:
        """Compile the update without allocating its state, and return what it costs."""
        settings, config, state = self._settings, self._description.config, self._template()
        self._where = shardings(state)
        compiled = self._interrupts.run(lambda: self._compiled_step(state))
        model = state.params if self._frozen is None else self._frozen
        return Preview(
            parameters=_size(model),
            active=active_parameters(model),
            trained=_size(state.params),
            needed=memory.needed(compiled),
            limit=memory.limit(self._placement.n_local_devices),
            flops=step_flops(settings.task, config, batch_size=settings.batch_size, l=settings.l_max),
            peak=self._peak(),
            device=self._placement.devices,
        )

    def _batch(self, step: int) -> Any:
        return self._divided(self._data.train.batch(step, rows=self._rows))

    def _held_out(self) -> Iterator[Any]:
        return map(self._divided, self._data.validation.evaluation_batches(rows=self._rows))

    def _divided(self, batch: Any) -> Any:
        return self._placement.batch(batch, self._settings.batch_size)

    def _facts(self) -> Facts:
        settings, step = self._settings, self._progress.step
        held_out, model, seconds = next(self._held_out()), self._model(), []
        for _ in range(2):  # the first is a warm-up
            start = self._clock()
            jax.block_until_ready(self._totals(model, held_out))
            seconds.append(self._clock() - start)
        return Facts(
            step=step,
            parameters=_size(jax.eval_shape(self._unpadded, model)),
            trained=_size(jax.eval_shape(self._unpadded, self._state.params)),
            tokens=self._data.n_tokens,
            epochs=settings.steps * settings.batch_size / self._data.train.n_examples,
            device=self._placement.devices,
            seconds=(settings.steps - step) * FORWARDS * seconds[-1],
        )

    def _loop(self) -> None:
        if self._progress.pending:
            self._evaluate()
        first = self._progress.step
        batches = self._data.train.batches(first, rows=self._rows)
        self._rates.skip()
        profiles = self._settings.profile and self._processes.is_main
        while self._progress.step < self._settings.steps and not self._progress.stopped:
            self._interrupts.check()
            if self._processes.should_stop(self._progress.step):
                raise Interrupted(128 + signal.SIGTERM)
            if profiles and self._progress.step == first + PROFILE_AFTER:
                jax.profiler.start_trace(str(self._files.profile))
            done = np.int32(self._progress.step)
            try:
                batch = self._divided(next(batches))
                self._state, metrics = self._step(self._state, batch, done, self._key, self._frozen)
                if self._progress.step == first:
                    jax.block_until_ready(metrics)
            except jax.errors.JaxRuntimeError as error:
                if not (memory.is_exhausted(error) and self._progress.step == first):
                    raise
                self._begin_in_more_parts()
                batches = self._data.train.batches(first, rows=self._rows)
                continue
            self._progress.step += 1
            self._in_flight.append((self._progress.step, metrics))
            if profiles and self._progress.step == first + PROFILE_AFTER + PROFILED:
                self._settle(most=0)
                jax.profiler.stop_trace()
            self._after_update(self._progress.step)

    def _begin_in_more_parts(self) -> None:
        """Start over with more parts: the first update ran out of memory, and may have corrupted the state."""
        self._split_batch()
        del self._state  # frees its memory before it is read again
        self._restore_or_begin()
        self._compile()
        self._rates.skip()

    def _after_update(self, step: int) -> None:
        evaluates = self._evaluates(step)
        saves = step % self._settings.checkpoint_every == 0 or step == self._settings.steps
        self._settle(most=0 if evaluates or saves else IN_FLIGHT)
        if evaluates:
            self._evaluate()
        if saves or self._progress.stopped:
            self._save()
        if evaluates or saves:
            self._rates.skip()

    def _evaluates(self, step: int) -> bool:
        return step % self._settings.eval_every == 0 or step == self._settings.steps

    def _settle(self, *, most: int) -> None:
        """Read the results of updates until at most `most` are in flight."""
        while len(self._in_flight) > most:
            step, metrics = self._in_flight.popleft()
            loss, tokens, norm, rate = (float(value) for value in metrics[:4])
            self._rates.add(tokens)
            if not metrics.healthy:
                raise self._diagnosis(step, loss, rate)
            if loss > self._limit:
                raise explosion(step, loss, self._limit, self._last_checkpoint())
            line = {"step": step, "loss": loss, "perplexity": perplexity(loss)}
            line |= {"learning_rate": rate, "gradient_norm": norm}
            line |= {} if metrics.balance is None else {"balance": float(metrics.balance)}
            evaluates = self._evaluates(step)
            if evaluates or step == 1 or step % self._settings.log_every == 0:
                rates, seconds = self._rates.read()
                self._progress.seconds += seconds
                line |= rates | {"seconds": self._progress.seconds, "memory_bytes": memory_in_use()}
                if evaluates:
                    self._progress.pending = line
                else:
                    self._log.append(line)
            self._observer.updated(step, line)

    def _evaluate(self) -> None:
        """Evaluate after the last update, and write its pending metrics."""
        step = self._progress.step
        results = self._evaluation(0 if step == self._settings.steps else self._settings.eval_batches)
        self._log.append((self._progress.pending or {}) | {f"validation_{name}": v for name, v in results.items()})
        self._progress.pending = None
        if self._progress.note(results, self._settings.patience) and self._best:
            self._best.save(step, {"params": self._evaluated_params()}, {})
        if self._processes.is_main:
            plot_losses(read_metrics(self._files.metrics), self._files.picture, title=self._files.path.name)
        c, run = self._description, None
        if self._processes.count == 1:  # several have only a part of the model each
            run = Run(self._gathered(), c.config, self._data.tokenizer, c.settings.task, c.labels)
        self._observer.evaluated(step, results, run)

    def _evaluation(self, limit: int) -> dict[str, float]:
        return evaluate(
            self._totals,
            self._model(),
            self._held_out(),
            limit=limit,
            tokens_per_byte=self._data.tokens_per_byte,
            check=self._interrupts.check,
        )

    def _evaluated_params(self) -> Any:
        return self._state.params if self._state.ema is None else self._state.ema

    def _model(self) -> Any:
        """The model to evaluate: the evaluated parameters, merged into the frozen ones if there are any."""
        params = self._evaluated_params()
        if self._frozen is None:
            return params
        merge = jax.jit(merged, static_argnums=2, out_shardings=shardings(self._frozen))
        with self._placement.in_use():
            return merge(self._frozen, params, scale_of(self._settings))

    def _gathered(self) -> Any:
        """The model to evaluate, on a single device."""
        return self._unpadded(self._placement.gathered(self._model()))

    def _unpadded(self, params: Any) -> Any:
        return unpadded(params, self._description.config.N_V, self._settings.vocabulary_multiple)

    def _save(self) -> None:
        meta = {
            "progress": self._progress.to_json(),
            "metrics_bytes": self._log.size(),
            "key": np.asarray(jax.random.key_data(self._key)).tolist(),
            "run": self._description.to_json(),
            "tokenizer": self._data.tokenizer.to_json(),
        }
        self._checkpoints.save(self._progress.step, _items(self._state), meta)

    def _last_checkpoint(self) -> int | None:
        self._checkpoints.wait()
        return next(iter(self._checkpoints.steps()), None)

    def _diagnosis(self, step: int, loss: float, rate: float) -> TrainingError:
        """Recompute the gradient of a bad update, which left the state unchanged."""
        gradient = jax.jit(batch_loss(self._objective, self._settings, N_V=self._N_V))
        with self._placement.in_use():
            of_step = self._state.params, self._batch(step - 1), np.int32(step - 1), self._key, self._frozen
            _, gradients, _ = gradient(*of_step)
        return not_finite(step, loss, rate, self._placement.gathered(gradients), self._last_checkpoint())

    def _finish(self) -> dict[str, float]:
        """Write the parameters and the results after the last update."""
        results = self._progress.results
        if self._best:
            self._best.wait()
            template = self._placement.placed(jax.eval_shape(self._evaluated_params))
            restored = read_checkpoint(self._files.best, self._progress.best_step, {"params": template})
            self._state = self._state._replace(params=restored.trees["params"], ema=None)
            results = self._evaluation(0)
        self._checkpoints.wait()
        is_whole = self._frozen is None
        trained = self._gathered() if is_whole else self._placement.gathered(self._evaluated_params())
        if self._processes.is_main:
            step = self._progress.best_step if self._best else self._progress.step
            self._files.save_parameters(trained, self._files.parameters if is_whole else self._files.adapter)
            self._files.save_results({"step": step, **results})
        return results


def _size(tree: Any) -> int:
    return sum(array.size for array in jax.tree.leaves(tree))


def _items(state: TrainState) -> dict[str, Any]:
    """The items of a checkpoint; the parameters can be read without the rest."""
    items: dict[str, Any] = {"params": state.params, "state": (state.opt_state, state.healthy)}
    optional = {"ema": state.ema, "loss_scale": state.loss_scale}
    return items | {name: tree for name, tree in optional.items() if tree is not None}
