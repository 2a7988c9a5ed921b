"""Estimate the cost of a training step on many accelerators from the compiled program; nothing is run or allocated.

    scripts/benchmark.py scaling --model gpt3 --chips v5p:8x8x4 --mesh data=32,model=8 --batch-size 128 --remat all
    scripts/benchmark.py scaling --model gpt2 --chips h100:8 --mesh data=8 --batch-size 64

The program is the update of `scripts/train.py` with its defaults, packed documents in bfloat16. Per step and device, on
a mesh of n devices:

    FLOPs       = matrix products of the model, forward and backward, / n; times 4/3 if products are recomputed
    arithmetic  = max(FLOPs / peak, cycles / clock);   memory = bytes / bandwidth;   with the constants of CHIPS
                  compilers estimate no cycles of experts' kernels: their FLOPs / peak, with equal loads, are added
    collectives = Σ bytes · (g − 1)/g (twice for an all-reduce) / bandwidth of the links, for groups of g devices
    step time   = max(arithmetic, memory, collectives), if they overlap, to max(arithmetic, memory) + collectives
    MFU         = FLOPs without recomputation / peak / step time: in full, with all pairs of tokens in attention (PaLM),
                  and by half, with the half of them that a causal mask leaves (MaxText since 2025)
"""

import argparse
import dataclasses
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from training.benchmarks.accelerators import compilers, programs
from training.benchmarks.reference import GPT2_124M
from training.loop.cost import BACKWARD, step_flops
from training.loop.optimizers import optimizer_from
from training.loop.train_step import init_state, make_step
from training.mesh.padding import padded, padded_size
from training.mesh.placement import Placement, shardings
from training.mesh.shape import check_sizes, n_places
from training.settings import REMAT, Settings
from training.tasks import TASKS, settings_from
from training.tasks.flops import mlp_flops, score_flops
from training.tasks.models import init_model, model_config

MIXTRAL_SIZES = {"N_V": 32000, "l_max": 4096, "L": 32, "H": 32, "H_kv": 8, "d_e": 4096}
MODELS = {
    "gpt2": GPT2_124M,
    "gpt2-xl": {**GPT2_124M, "L": 48, "H": 25, "d_e": 1600, "d_mlp": 6400},
    "gpt3": {"N_V": 50257, "l_max": 2048, "L": 96, "H": 96, "d_e": 12288, "d_mlp": 49152},
    "mixtral": {**MIXTRAL_SIZES, "d_mlp": 14336, "variant": "MIXTRAL"},
    "mixtral-dense": {**MIXTRAL_SIZES, "d_mlp": 28672, "variant": "LLAMA"},
}
"""GPT-2 124M and XL (Radford et al. 2019), GPT-3 175B (Brown et al. 2020) with dense attention, Mixtral 8x7B (Jiang et
al. 2024), and a dense model with as many active parameters."""


class Chip(NamedTuple):
    """An accelerator's specification, by its manufacturer."""

    peak: float  # FLOP/s in bfloat16
    bandwidth: float  # bytes/s of its memory
    links: float  # bytes/s to its neighbors, in one direction
    network: float  # bytes/s to other hosts, in one direction
    clock: float = 0.0  # Hz; 0 if the compiler does not estimate cycles
    on_host: int = 0  # chips linked within a host; 0 if all are linked


CHIPS = {
    "v5e": Chip(197e12, 819e9, 100e9, 100e9, 1.5e9),
    "v5p": Chip(459e12, 2765e9, 300e9, 300e9, 1.75e9),
    "v6e": Chip(918e12, 1640e9, 224e9, 224e9, 1.75e9),
    "h100": Chip(989e12, 3352e9, 450e9, 50e9, on_host=8),
}


class Case(NamedTuple):
    """A training step."""

    model: str  # one of `MODELS`
    chips: str  # a TPU topology such as v5p:8x8x4, or h100:N
    mesh: str  # "": all chips along data
    batch_size: int  # sequences per update
    remat: str = "nothing"  # what a layer recomputes

    def settings(self, sizes: dict[str, int] | None = None) -> Settings:
        """Return the settings of a run with such steps."""
        sizes = sizes or MODELS[self.model]
        values = {"variant": "GPT2", "optimizer": "adamw", "dtype": "bfloat16", "mesh": self.mesh}
        values |= {"vocabulary_multiple": 128, "batch_size": self.batch_size, "remat": self.remat}
        return settings_from({**values, **sizes, "schedule": "cosine", "learning_rate": 1e-4}, task="d")

    @property
    def chip(self) -> Chip:
        """The specification of each chip."""
        return CHIPS[self.chips.partition(":")[0]]


class Cost(NamedTuple):
    """The cost of a step on each device."""

    devices: int  # number of devices
    flops: float  # of the model's matrix products, without recomputation
    of_pairs: float  # those of scores and weighted sums; a causal mask needs only half of them
    kernels: float  # seconds of experts' kernels
    arithmetic: float  # seconds, with these
    memory: float  # seconds
    collectives: float  # seconds
    report: programs.Report  # of the compiled program

    def seconds(self) -> tuple[float, float]:
        """Return the step's seconds with overlapping collectives, and with collectives after the rest."""
        busy = max(self.arithmetic, self.memory)
        return max(busy, self.collectives), busy + self.collectives

    def mfu(self, chip: Chip, *, halved: bool = False) -> tuple[float, float]:
        """Return the utilization in both cases, the lower one first, with attention in full or by half."""
        flops = self.flops - self.of_pairs / 2 * halved
        best, worst = (flops / chip.peak / seconds for seconds in self.seconds())
        return worst, best


def cost(case: Case, sizes: dict[str, int] | None = None) -> Cost:
    """Compile a step and estimate its cost from the program."""
    settings = case.settings(sizes)
    compiled, n = compiled_step(case, settings)
    return estimated(compiled, settings, case.chip, n)


def estimated(compiled: Any, settings: Settings, chip: Chip, n: int) -> Cost:
    """Estimate the cost of a run's compiled update on each of n devices."""
    report, config = programs.of(compiled), model_config(settings, settings.N_V)
    flops = step_flops("d", config, batch_size=settings.batch_size, l=settings.l_max) / n
    of_pairs = BACKWARD * settings.batch_size * score_flops(config, config.L, settings.l_max, settings.l_max) / n
    _, moved, cycles = programs.total(report.sources)
    recomputed = 4 / 3 if settings.remat in ("all", "all-but-attention") else 1
    of_experts = 0.0
    if "gmm" in report.custom_calls:
        of_experts = BACKWARD * settings.batch_size * mlp_flops(config, config.L, settings.l_max) / n
    kernels = recomputed * of_experts / chip.peak
    arithmetic = max(recomputed * flops / chip.peak, kernels + cycles / chip.clock if chip.clock else 0)
    return Cost(n, flops, of_pairs, kernels, arithmetic, moved / chip.bandwidth, _seconds(report, chip), report)


def compiled_step(case: Case, settings: Settings) -> tuple[Any, int]:
    """Return the update of a run, compiled for its accelerators, and their number; no parameter is allocated."""
    name, _, count = case.chips.partition(":")
    if name not in CHIPS or (name == "h100" and not count.isdecimal()):
        raise ValueError(f"--chips: expected h100:8, or a topology such as v5p:2x2x1, got {case.chips!r}")
    if name == "h100":
        devices = compilers.h100(int(count)).devices.flatten()
    else:
        devices = compilers.tpu(case.chips, n_places(case.mesh) if case.mesh else None).devices.flatten()
    settings = dataclasses.replace(settings, mesh=case.mesh or f"data={devices.size}")
    platform = "cuda" if name == "h100" else "tpu"
    return update(settings, Placement(settings.mesh, devices), platform)[0], devices.size


def update(settings: Settings, placement: Placement, platform: str | None = None) -> tuple[Any, Callable[[], Any]]:
    """Return the update of a run, compiled for its devices or another `platform`, and a call that makes its state."""
    config = model_config(settings, settings.N_V)
    check_sizes(settings, padded_size(config.N_V, settings.vocabulary_multiple))
    schedule, optimizer = optimizer_from(settings)

    def begin():
        params = init_model(jax.random.key(0), "d", config, scheme="gpt2")
        return init_state(padded(params, config.N_V, settings.vocabulary_multiple), optimizer)

    state = placement.placed(jax.eval_shape(begin))
    rows = jax.ShapeDtypeStruct((settings.batch_size, settings.l_max), jnp.int32, sharding=placement.of_batch)
    batch = dict.fromkeys(("x", "segment_ids", "positions"), rows) | {"loss_mask": rows.update(dtype=jnp.bool_)}
    key = jax.eval_shape(lambda: jax.random.key(0))
    step = make_step(TASKS["d"].objective, optimizer, schedule, settings, N_V=config.N_V)
    number = jax.ShapeDtypeStruct((), jnp.int32)
    options = {"out_shardings": (shardings(state), None), "donate_argnums": 0}
    compiled = placement.compiled(step, (state, batch, number, key), platform, **options)
    return compiled, jax.jit(begin, out_shardings=shardings(state))


def _seconds(report: programs.Report, chip: Chip) -> float:
    total = 0.0
    for name, (_, size, _) in report.groups.items():
        kind, group, span = name.split()
        g = int(group)
        moved = size if kind == "collective-permute" else size * (g - 1) / g * (2 if kind == "all-reduce" else 1)
        total += moved / (chip.network if chip.on_host and int(span) > chip.on_host else chip.links)
    return total


def described(case: Case, found: Cost, seconds: float) -> str:
    """Return the report that the command line prints."""
    report, chip = found.report, case.chip
    runs, moved, cycles = programs.total(report.sources)
    what = f"{case.model} on {case.chips}, mesh {case.mesh or 'data'}, batch {case.batch_size}, remat {case.remat}"
    of_kernels = f", and {found.kernels * chip.clock / 1e6:.4g} M in experts' kernels" if found.kernels else ""
    memory = report.memory
    lines = [
        f"{what}; compiled in {seconds:.0f} s. Per step, on each of {found.devices} devices:",
        f"  memory       {memory['argument'] / 1e9:.2f} GB of arguments, {memory['temp'] / 1e9:.2f} GB temporary",
        f"  FLOPs        {found.flops:.3g} of the model",
        f"  cycles       {cycles / 1e6:.4g} M{of_kernels}" if cycles else "  cycles       not estimated",
        f"  bytes        {moved / 1e9:.4g} GB from and to memory, by {runs:.0f} kernels",
    ]
    for kind, (times, size, _) in sorted(report.collectives.items()):
        lines.append(f"  {kind:<20} {size / 1e9:10.3f} GB in {times:.0f}")
    lines.append(f"  {'collectives':<20} {programs.total(report.collectives)[1] / 1e9:10.3f} GB")
    best, worst = found.seconds()
    low, high = found.mfu(chip)
    low_2, high_2 = found.mfu(chip, halved=True)
    lines.append(
        f"  predicted    arithmetic {found.arithmetic:.4g} s, memory {found.memory:.4g} s, collectives "
        f"{found.collectives:.4g} s: a step of {best:.4g} to {worst:.4g} s, MFU {100 * low:.0f} to {100 * high:.0f} %, "
        f"or {100 * low_2:.0f} to {100 * high_2:.0f} % with attention counted by half"
    )
    return "\n".join(lines)


def add_arguments(main: argparse.ArgumentParser) -> None:
    """Add the arguments of `benchmark.py scaling`."""
    main.add_argument("--model", choices=MODELS, default="gpt2", help="the model (default: gpt2)")
    main.add_argument("--chips", default="h100:8", metavar="NAME:SHAPE", help="such as v5e:2x4, v5p:8x8x4 or h100:8")
    main.add_argument("--mesh", default="", help="such as data=4,model=2 (default: data, with all chips)")
    main.add_argument("--batch-size", type=int, default=64, metavar="B", help="sequences per update (default: 64)")
    main.add_argument("--remat", choices=REMAT, default="nothing", help="what a layer recomputes (default: nothing)")


def run(arguments: argparse.Namespace) -> int:
    """Estimate what the arguments name, and return the exit status."""
    case = Case(arguments.model, arguments.chips, arguments.mesh, arguments.batch_size, arguments.remat)
    began = time.monotonic()
    found = cost(case)
    print(described(case, found, time.monotonic() - began), flush=True)
    return 0
