"""The training loop: updates, metrics, evaluations and checkpoints, with exact resumption.

Everything that determines the next update is in the checkpoint or follows from the step's number: the batch of step s
depends on (seed, s) alone, and its randomness is ``fold_in(key, s)``. So a run that is killed at any moment and
restarted with the same command gives, bit for bit, the losses and parameters of an uninterrupted one.
"""

import collections
import functools
import math
import signal
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from training.data.token_store import token_stores
from training.disk import reason
from training.evaluation.held_out import evaluate, perplexity
from training.loop.cost import is_exhausted, memory_in_use
from training.loop.diagnosis import TrainingError, explosion
from training.loop.program import Plan, Program, size
from training.loop.run_store import Progress, Store
from training.loop.train_step import StepMetrics, TrainState
from training.mesh.processes import Processes
from training.runs.checkpoints import saved_steps
from training.runs.directory import Run, RunDirectory
from training.runs.interrupts import Interrupted, Interrupts
from training.runs.metrics import Writer
from training.settings import Settings

IN_FLIGHT = 2  # updates dispatched before the first one's result is read
EXPLODED = 10  # updates in a row whose loss is above the limit: a single one may be a wrong label
PROFILE_AFTER, PROFILED = 10, 5  # updates before the trace, and in it


class Facts(NamedTuple):
    """Sizes and estimates of a training before its first update."""

    step: int  # updates already done
    parameters: int  # of the model
    trained: int  # trained parameters: all of the model's, or the low-rank ones
    tokens: int  # of the training data
    epochs: float  # passes over the training data
    device: str  # description of the devices
    evaluating: float  # estimated seconds of the remaining evaluations


class Watch(NamedTuple):
    """The interrupts that a training obeys, and the receivers of its progress."""

    interrupts: Interrupts
    observer: Any  # shows the progress, as `training.command_line.progress.Display` does
    clock: Callable[[], float]
    processes: Processes  # those that train together
    writers: Sequence[Writer] = ()  # which also receive the metrics

    def check(self) -> None:
        """Raise Interrupted if the training is to stop; of several processes, in all at the same call."""
        if self.processes.count == 1:
            self.interrupts.check()
        elif self.processes.should_stop():
            raise Interrupted(128 + signal.SIGTERM)

    def evaluation(self, program: Program, state: TrainState, *, sample: int = 0) -> dict[str, float]:
        """Return the figures on a `sample` of the held-out batches (0: all)."""
        plan, n = program.plan, program.plan.data.validation.n_steps
        total = min(sample, n) if sample else n

        def check() -> None:
            self.check()
            self.observer.evaluating(total)

        how = {"tokens_per_byte": plan.data.validation.tokens_per_byte, "check": check}
        return evaluate(program.totals, plan.model(state), plan.held_out(sample), **how)


def train(plan: Plan, files: RunDirectory, watch: Watch) -> dict[str, float]:
    """Train to the end, from the last checkpoint if any; return the trained parameters' figures on held-out data.
    Raises Interrupted after saving a checkpoint, TrainingError if loss or gradient are not finite, the loss exploded,
    or a file cannot be written, and CheckpointError.
    """
    try:
        options = {"is_main": watch.processes.is_main, "warn": watch.observer.warned, "writers": watch.writers}
        with Store(plan, files, **options) as store:
            program, state, progress = _ready(plan, store, watch)
            watch.observer.began(_facts(program, state, progress.step, watch))
            while True:
                try:
                    state = _loop(program, state, progress, store, watch)
                    return _finish(program, state, progress, store, watch)
                except _TooLargeError:
                    plan = _in_more_parts(program.plan, store, watch)
                del state  # frees its memory before it is read again
                program, state, progress = _ready(plan, store, watch)
    except BrokenPipeError:
        raise  # the reader of the observer's output closed the pipe
    except OSError as error:
        raise TrainingError(
            f"cannot write to {files.path}: {reason(error)}; make room, and rerun the command to "
            + ("resume from the last checkpoint" if saved_steps(files.checkpoints) else "start over")
        ) from error


def _ready(plan: Plan, store: Store, watch: Watch) -> tuple[Program, TrainState, Progress]:
    """Read the last checkpoint or begin, and compile what fits into memory."""
    with watch.observer.waiting("preparing the first state"):
        state, progress = store.restore(plan)
    split = functools.partial(_in_more_parts, store=store, watch=watch)
    try:
        with watch.observer.waiting("compiling, and measuring the peak of matrix products"):
            return Program.fitting(plan, state, watch.clock, watch.interrupts.run, split), state, progress
    except Interrupted:
        if watch.processes.count == 1:  # several end at once, each where it is
            store.save(state, progress)
        raise


def _in_more_parts(plan: Plan, store: Store, watch: Watch) -> Plan:
    """Compute a batch in more parts, and record that in the run."""
    smaller = plan.in_more_parts()
    store.note(smaller)
    watch.observer.warned(
        f"memory is short: each batch is computed in {smaller.settings.accumulation_steps} parts instead of "
        f"{plan.settings.accumulation_steps} (accumulation_steps)"
    )
    return smaller


def _facts(program: Program, state: TrainState, step: int, watch: Watch) -> Facts:
    plan, seconds = program.plan, []
    settings, held_out, model = plan.settings, next(plan.held_out()), plan.model(state)
    with watch.observer.waiting("timing a held-out batch"):
        for _ in range(2):  # the first is a warm-up
            start = watch.clock()
            jax.block_until_ready(program.totals(model, held_out))
            seconds.append(watch.clock() - start)
    return Facts(
        step=step,
        parameters=size(jax.eval_shape(plan.unpadded, model)),
        trained=size(jax.eval_shape(plan.unpadded, state.params)),
        tokens=plan.data.n_tokens,
        epochs=settings.steps * settings.batch_size / plan.data.train.n_examples,
        device=plan.placement.devices,
        evaluating=seconds[-1] * _evaluated(plan, step),
    )


def _evaluated(plan: Plan, step: int) -> int:
    """Return how many held-out batches the rest of a training evaluates."""
    settings, n = plan.settings, plan.data.validation.n_steps
    times = -(-settings.steps // settings.eval_every) - step // settings.eval_every
    return times * min(settings.eval_batches or n, n) + n * (plan.samples or settings.patience > 0)


def _loop(program: Program, state: TrainState, progress: Progress, store: Store, watch: Watch) -> TrainState:
    """Make the updates that are left; return the state, which is corrupted if the first raises _TooLargeError."""
    plan, settings, first = program.plan, program.plan.settings, progress.step
    record = _Record(program, progress, store, watch)
    batches, profiled = plan.batches(first), _profiled(settings, first)
    try:
        if progress.pending:
            record.evaluate(state)
        record.rates.skip()
        while progress.step < settings.steps and not progress.stopped:
            watch.check()
            if profiled and progress.step == profiled.start:
                store.trace(begins=True)
            state, metrics = _updated(program, state, next(batches), progress.step, is_first=progress.step == first)
            progress.step += 1
            record.add(metrics)
            if profiled and progress.step == profiled.stop:
                record.settle(state, in_flight=0)
                store.trace(begins=False)
            evaluates = _evaluates(settings, progress.step)
            saves = progress.step % settings.checkpoint_every == 0 or progress.step == settings.steps
            record.settle(state, in_flight=0 if evaluates or saves else IN_FLIGHT)
            saves = saves and (not record.above or progress.step == settings.steps)  # the last good one stays
            if evaluates:
                record.evaluate(state)
            if saves or progress.stopped:
                store.save(state, progress)
            if evaluates or saves:
                record.rates.skip()
    except Interrupted:
        record.settle(state, in_flight=0)
        store.save(state, progress)
        raise
    return state


def _profiled(settings: Settings, first: int) -> range:
    """Return the updates to trace: a few after the first ones, or the last if there are not as many."""
    start = min(first + PROFILE_AFTER, max(first, settings.steps - PROFILED))
    return range(start, min(start + PROFILED, settings.steps)) if settings.profile else range(0)


def _updated(
    program: Program, state: TrainState, batch: Any, step: int, *, is_first: bool
) -> tuple[TrainState, StepMetrics]:
    """Make an update; of the first one, wait for the result."""
    try:
        state, metrics = program.step(*program.plan.arguments(state, step, batch))
        return state, jax.block_until_ready(metrics) if is_first else metrics
    except jax.errors.JaxRuntimeError as error:
        if not (is_exhausted(error) and is_first):
            raise
        raise _TooLargeError from None


def _finish(program: Program, state: TrainState, progress: Progress, store: Store, watch: Watch) -> dict[str, float]:
    """Write the trained parameters, the best ones if they are kept, and their results on all held-out data."""
    results, step = progress.results, progress.step
    best = store.best(state) if progress.best_step else None  # 0: no loss was finite
    if best is not None:
        state, step = best, progress.best_step
    if step != progress.step or program.plan.samples:
        results = watch.evaluation(program, state)
    trained, is_adapter = program.plan.trained(state), program.plan.frozen is not None
    overlap = token_stores(program.plan.data.stores.validation)[0].overlap
    figures = {"step": step, **results} | ({} if overlap is None else {"overlap": overlap})
    store.finish(trained, figures, progress.step, is_adapter=is_adapter)
    return results


def _evaluates(settings: Settings, step: int) -> bool:
    return step % settings.eval_every == 0 or step == settings.steps


class _TooLargeError(Exception):
    """The first update does not fit into memory."""


class Rates:
    """Tokens per second and the model FLOP/s utilization (MFU), over the updates since they were last read.

    The MFU divides the FLOPs of the model's formulas, with all pairs of tokens in attention, by those of a product that
    is measured once, before the first update, or given. It is above 1 where attention skips the pairs that a mask
    excludes, where that product was slow, as while other programs ran, or where several updates in flight ended
    between two readings of the clock.
    """

    def __init__(self, clock: Callable[[], float], *, flops: float, peak: float) -> None:
        """Start measuring; `flops` are those of an update, `peak` the machine's FLOP/s."""
        self._clock, self._flops, self._peak = clock, flops, peak
        self._last = clock()
        self._seconds = self._tokens = self._updates = 0.0

    def add(self, tokens: float) -> None:
        """Count an update and its predicted tokens."""
        now = self._clock()
        self._seconds += now - self._last
        self._last = now
        self._tokens += tokens
        self._updates += 1

    def skip(self) -> None:
        """Exclude the time since the last update."""
        self._last = self._clock()

    def read(self) -> tuple[dict[str, float], float]:
        """Return the rates and the seconds they were measured over, and start anew."""
        seconds = max(self._seconds, 1e-9)
        rates = {"tokens_per_second": self._tokens / seconds, "mfu": self._updates * self._flops / seconds / self._peak}
        self._seconds = self._tokens = self._updates = 0.0
        return rates, seconds


class _Record:
    """Metrics of the updates, which are read a few updates later, and evaluations."""

    def __init__(self, program: Program, progress: Progress, store: Store, watch: Watch) -> None:
        plan = program.plan
        self._program, self._progress, self._store, self._watch = program, progress, store, watch
        classes = len(plan.description.labels) or plan.description.config.N_V
        self._limit = plan.settings.explosion * math.log(classes)  # that many times the loss of a uniform guess
        self._in_flight: collections.deque[tuple[int, StepMetrics]] = collections.deque()
        self.above = 0  # how many of the last updates had a loss above the limit
        self.rates = Rates(watch.clock, flops=plan.flops, peak=program.peak)

    def add(self, metrics: StepMetrics) -> None:
        """Add the metrics of the last update, which is in flight."""
        self._in_flight.append((self._progress.step, metrics))

    def settle(self, state: TrainState, *, in_flight: int) -> None:
        """Read the metrics of updates until at most `in_flight` are. Raises TrainingError if one failed."""
        while len(self._in_flight) > in_flight:
            step, metrics = self._in_flight.popleft()
            loss, tokens, norm, rate = (float(value) for value in metrics[:4])
            self.rates.add(tokens)
            if not metrics.healthy:
                raise self._program.plan.diagnosis(state, step, loss, rate, self._store.last_step())
            self.above = self.above + 1 if loss > self._limit else 0
            if self.above == EXPLODED:
                raise explosion(step, loss, self._limit, self._store.last_step())
            line = {"step": step, "loss": loss, "perplexity": perplexity(loss)}
            line |= {"learning_rate": rate, "gradient_norm": norm}
            further = {"balance": metrics.balance, "mtp_loss": metrics.mtp}
            line |= {name: float(value) for name, value in further.items() if value is not None}
            self._write(step, line)
            self._watch.observer.updated(step, line)

    def _write(self, step: int, line: dict[str, Any]) -> None:
        """Write the line of an update with the rates, if it is due, or keep it for the evaluation."""
        settings = self._program.plan.settings
        evaluates = _evaluates(settings, step)
        if not (evaluates or step == 1 or step % settings.log_every == 0):
            return
        rates, seconds = self.rates.read()
        self._progress.seconds += seconds
        if rates["mfu"] > 1:
            del rates["mfu"]
        line |= rates | {"seconds": self._progress.seconds, "memory_bytes": memory_in_use()}
        if evaluates:
            self._progress.pending = line
        else:
            self._store.append(line)

    def evaluate(self, state: TrainState) -> None:
        """Evaluate after the last update, and write its pending metrics."""
        program, progress, watch = self._program, self._progress, self._watch
        plan, c, step = program.plan, program.plan.description, progress.step
        results = watch.evaluation(program, state, sample=plan.settings.eval_batches)
        self._store.append((progress.pending or {}) | {f"validation_{name}": v for name, v in results.items()})
        progress.pending = None
        if progress.note(results, plan.settings.patience):
            self._store.keep_best(state)
        self._store.draw()
        run = None
        if watch.processes.count == 1:  # several have only a part of the model each
            run = Run(plan.gathered(state), c.config, plan.data.tokenizer, c.settings.task, c.labels)
        watch.observer.evaluated(step, results, run)
