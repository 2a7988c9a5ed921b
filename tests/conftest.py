"""The tests' JAX: float64, eight virtual CPU devices, and every shape in a signature enforced.

All of it must happen before JAX starts its backend and before the packages are imported, hence at import.
On an accelerator: `JAX_PLATFORMS=cuda,cpu make test`.
"""

import importlib.metadata
import os
import pathlib
import random

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# The workers, the commands that they start, the next run and other clones load what one of them has compiled.
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR",
    str(pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "formal-algorithms" / "tests"),
)
# Compiling takes most of the time, and half of that with XLA's slow passes, which `make end-to-end` has on.
if os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1") == "1":
    quickest = "--xla_cpu_parallel_codegen_split_count=1"
    if importlib.metadata.version("jaxlib").startswith("0.10."):  # later ones have no other emitters
        quickest += " --xla_cpu_use_fusion_emitters=false"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {quickest}".strip()
# XLA's collectives between virtual devices deadlock when its thread pool is smaller than twice their number, and XLA
# ends the process if a device waits for 40 seconds for the others, which a busy machine can take.
os.environ.setdefault("NPROC", "16")
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_collective_call_terminate_timeout_seconds=400"

import collections
import ctypes
import dataclasses
import functools
import gc
import io
import itertools
import sys
import zlib

import hypothesis
import jax
import jaxtyping
import pytest

from tests import typechecking
from tests.budget import pytest_runtest_call, pytest_sessionfinish  # noqa: F401
from training import commands

if jax.config.read("jax_disable_most_optimizations") != (os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] == "1"):
    raise RuntimeError(
        "tests/conftest.py: expected to set JAX's variables before anything imports jax; unload the plugin"
    )
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_default_matmul_precision", "highest")  # an accelerator would round the factors
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_enable_xla_caches", "none")
jaxtyping.install_import_hook("algorithms", f"{typechecking.__name__}.typechecker")
# Examples include compilations, so a deadline would measure the machine; the same examples in every run.
hypothesis.settings.register_profile("jax", deadline=None, derandomize=True)
hypothesis.settings.register_profile("fuzz", deadline=None, max_examples=10_000)
hypothesis.settings.load_profile("jax")
gc.set_threshold(200_000, 20, 20)  # tracing makes many objects, and few cycles


LIBRARIES = {"datasets", "lm_eval", "sentencepiece", "torch", "transformers"}
"""Libraries of the extra `compare`, as modules of tests and fixtures name them."""
NOT_QUICK = ("slow", "thorough", "end_to_end")
FROM_LIBRARIES = {"hf", "table", "theirs"}
"""Fixtures that need them."""


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what the markers exclude
def pytest_collection_modifyitems(items):
    """Mark what needs a library of the extra `compare` as end_to_end: the quick tests run without it."""
    for item in items:
        of_module = any(hasattr(item.module, library) for library in LIBRARIES)
        if of_module or LIBRARIES.union(FROM_LIBRARIES).intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.end_to_end)
    for item in items:  # of sampled tests all cases
        is_left_out = any(map(item.get_closest_marker, ("slow", "thorough", "compilers")))
        if not is_left_out and zlib.crc32(f"{SEED} {item.nodeid}".encode()) % 80 == 0:
            item.add_marker(pytest.mark.optimized)
    leave_to_thorough(items)


SEED = os.environ.get("TEST_SEED", "")
"""Draws the cases that `make end-to-end` runs as users would, marked optimized, and those of its sampled tests. The
quick tests are the same always."""


def pytest_report_header():
    return f"TEST_SEED={SEED} draws tests" if SEED else None


def leave_to_thorough(items):
    """Mark what sampled(n, tests=m) leaves out as thorough: all but n cases of each test, one of each of n equal parts
    of them; and all but m tests of the file.
    """
    cases, tests, later = collections.defaultdict(list), collections.defaultdict(list), []
    for item in items:
        says_so = any(mark.name == "sampled" for mark in item.own_markers)  # comparisons are drawn only then
        others = ("slow", "thorough") if says_so else NOT_QUICK
        if item.get_closest_marker("sampled") and not any(map(item.get_closest_marker, others)):
            cases[item.module, item.originalname].append(item)
    for (module, name), of_test in cases.items():
        marker, seed = of_test[0].get_closest_marker("sampled"), f"{module.__name__} {name}"
        draw = random.Random(seed + SEED * any(item.get_closest_marker("end_to_end") for item in of_test))
        n, N = marker.args[0], len(of_test)
        quick = {i * N // n + draw.randrange(max(1, (i + 1) * N // n - i * N // n)) for i in range(n)}
        tests[module, marker.kwargs.get("tests", len(cases))].append([of_test[i] for i in range(N) if i in quick])
        later += [of_test[i] for i in range(N) if i not in quick]
    for (module, m), of_file in tests.items():
        draw = random.Random(module.__name__)
        later += itertools.chain(*draw.sample(of_file, max(0, len(of_file) - m)))
    for item in later:
        item.add_marker(pytest.mark.thorough)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Say with a failure which seed chose its case."""
    report = yield
    if report.failed and item.get_closest_marker("optimized"):
        report.sections.append(("drawn", f"TEST_SEED={SEED} draws this test"))
    return report


BYTES_AT_MOST = 1_200_000_000
MAPPINGS_AT_MOST = 20_000
"""Of 65,530, Linux's limit, at which a process aborts; a program has a few."""


@pytest.fixture(scope="module", autouse=True)
def _bounded_memory():
    """Drop what a file has compiled if it is much."""
    yield
    process = pathlib.Path("/proc/self")
    if process.exists() and (
        int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") > BYTES_AT_MOST
        or (process / "maps").read_bytes().count(b"\n") > MAPPINGS_AT_MOST
    ):
        jax.clear_caches()
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)


@pytest.fixture
def x32():
    """Run the test in JAX's default 32-bit mode, as most callers do."""
    with jax.enable_x64(False):
        yield


@pytest.fixture
def as_for_users(monkeypatch):
    """Without beartype, which a user does not have: messages must come from the library itself."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@functools.cache
def _what_trainings_compiled():
    """What the trainings of a process have compiled, by all that decides it."""
    return {}


@pytest.fixture(scope="module")
def compile_once():
    """Let trainings share what they compile if their updates are equal, and a picture: most of a short run."""
    from training.loop.program import Plan, Program  # noqa: PLC0415 (most tests need nothing of training/)
    from training.runs.loss_plots import Losses  # noqa: PLC0415

    compiled, of, begin = _what_trainings_compiled(), Program.of, Plan.begin.fget
    plot = Losses.plot

    def key_of(plan):
        elsewhere = {"data": (), "validation_data": (), "start_from": plan.settings.start_from and "a model"}
        others = {"seed": 0, "eval_every": 1, "checkpoint_every": 1, "patience": 0, "max_to_keep": 1, "explosion": 2.0}
        others["peak"] = float(plan.settings.peak > 0)
        settings = dataclasses.replace(plan.settings, **elsewhere, **others)
        return repr((settings, plan.description.config, plan.description.labels, jax.config.jax_enable_x64))

    def lookup(plan, state, clock):
        key = key_of(plan)
        if key not in compiled:
            compiled[key] = of(plan, state, clock)._replace(plan=None)
        peak = plan.peak(clock) if plan.settings.peak else compiled[key].peak
        return compiled[key]._replace(plan=plan, peak=peak)

    def lookup_begin(plan):
        key = "begin", key_of(plan)
        if key not in compiled:
            compiled[key] = begin(plan)
        return compiled[key]

    def one_picture(losses, path, *, title):
        if "picture" not in compiled:
            plot(losses, path, title=title)
            compiled["picture"] = path.read_bytes()
        path.write_bytes(compiled["picture"])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Losses, "plot", one_picture)
        patch.setattr(Program, "of", lookup)
        patch.setattr(Plan, "begin", property(lookup_begin))
        yield


@pytest.fixture(scope="module")
def as_most_callers(compile_once):
    """JAX's 32-bit mode, and everything compiled once: most runs of a file are the same one."""
    with jax.enable_x64(False):
        yield


@pytest.fixture
def called(capsys, monkeypatch):
    """Run a command, such as generate; return its status, and what it printed to standard output and error."""

    def call(name, *arguments, stdin=""):
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin) if isinstance(stdin, str) else stdin)
        capsys.readouterr()
        status = getattr(commands, f"{name}_main")([*map(str, arguments)])
        return status, *capsys.readouterr()

    return call


@pytest.fixture
def printed(called):
    """Run a command that succeeds; return what it printed to standard output."""

    def call(*words, **options):
        status, out, err = called(*words, **options)
        assert status == 0, err
        return out

    return call
