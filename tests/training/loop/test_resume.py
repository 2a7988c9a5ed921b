"""Runs that are ended from outside and begun again by the same command have the outcome of an undisturbed one."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import chex
import pytest

from tests.training_cases import untimed
from training.runs.directory import RunDirectory
from training.runs.metrics import read_metrics
from training.runs.trained_model import load_run

pytestmark = pytest.mark.end_to_end
ROOT = pathlib.Path(__file__).resolve().parents[3]
TEXT = "".join(f"The {n}th paragraph says that {n} and {n + 1} are {2 * n + 1}.\n\n" for n in range(400))
FLAGS = {"tokenizer": "bytes", "l_max": 16, "L": 1, "H": 2, "d_e": 8, "d_mlp": 8, "batch-size": 4, "steps": 60}
FLAGS |= {"eval-every": 20, "checkpoint-every": 4, "dropout": 0.1, "ema-decay": 0.9, "peak": 1e12}
PATIENCE = 600  # seconds until a test gives up


def training(flags, environment, **options):
    """A process that trains."""
    words = [str(word) for name, value in flags.items() for word in (f"--{name}", value)]
    command = [sys.executable, str(ROOT / "scripts" / "train.py"), "d", "--quiet", "--no-tensorboard", *words]
    pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(command, env=environment, text=True, **pipes, **options)


class Command:
    """The command line of one run, which may be begun any number of times."""

    def __init__(self, directory):
        directory.mkdir()
        self.files = RunDirectory(directory / "run")
        (directory / "text.txt").write_text(TEXT)
        self._flags = FLAGS | {"run": self.files.path, "cache": directory.parent / "cache"}
        self._flags |= {"data": directory / "text.txt"}
        self._environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(directory.parent / "compiled")}
        limits = {"MIN_COMPILE_TIME_SECS": "0", "MIN_ENTRY_SIZE_BYTES": "-1"}
        self._environment |= {f"JAX_PERSISTENT_CACHE_{name}": value for name, value in limits.items()}

    def begin(self, **environment):
        return training(self._flags, self._environment | environment)

    def complete(self):
        process = self.begin()
        _, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, err
        return err

    def record(self):
        return untimed(self.files.metrics)


def wait_until(condition, *processes):
    """Wait until something is so; no process must have ended before."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        for process in processes:
            assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.002)


def end(process, number):
    process.send_signal(number)
    _, err = process.communicate(timeout=PATIENCE)
    return process.returncode, err


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    command = Command(tmp_path_factory.mktemp("resume") / "undisturbed")
    command.complete()
    assert [line["step"] for line in command.record()] == list(range(1, 61))
    return command


@pytest.fixture
def command(undisturbed, tmp_path_factory):
    """The same run in another directory, with the same data and the same compiled functions at hand."""
    directory = undisturbed.files.path.parents[1] / tmp_path_factory.mktemp("run").name
    command = Command(directory)
    (directory / "text.txt").unlink()
    (directory / "text.txt").symlink_to(undisturbed.files.path.parent / "text.txt")
    return command


def assert_same_outcome(command, undisturbed):
    assert command.record() == undisturbed.record()
    chex.assert_trees_all_equal(*(load_run(c.files.path).theta for c in (command, undisturbed)))


def test_a_killed_run_goes_on_exactly(command, undisturbed):
    process = command.begin()
    wait_until(lambda: len(read_metrics(command.files.metrics)) > 20, process)
    assert end(process, signal.SIGKILL)[0] == -signal.SIGKILL
    assert not command.files.parameters.exists()
    assert "resuming after step" in command.complete()
    assert_same_outcome(command, undisturbed)


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)]
)
def test_a_signal_while_it_compiles_or_trains_saves_and_ends(command, undisturbed, number, status):
    process = command.begin(JAX_COMPILATION_CACHE_DIR="")
    wait_until(command.files.config.exists, process)
    returncode, err = end(process, number)
    assert returncode == status, err
    assert err == "interrupted; rerun the command to resume from the last checkpoint\n"
    saved = [int(path.name) for path in command.files.checkpoints.iterdir()]
    assert saved
    assert max(saved) - len(command.record()) in (0, 1)  # 1 where an evaluation is still to be done
