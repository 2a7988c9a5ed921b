"""Several processes train what one trains; when one of them ends, so do the others, with a sentence."""

import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from tests.training.loop.test_resume import ROOT, TEXT, training, wait_until
from training.command_line import supervision
from training.mesh.processes import SILENCE, Processes, ProcessesError
from training.runs.directory import RunDirectory
from training.runs.metrics import read_metrics
from training.runs.named_arrays import flatten
from training.runs.trained_model import load_run

SIZES = {"l_max": 16, "L": 1, "H": 4, "d_e": 16, "d_mlp": 16, "batch-size": 8, "dropout": 0.1}
FLAGS = {**SIZES, "tokenizer": "bytes", "optimizer": "adamw", "schedule": "cosine", "peak": 1e12}
FLAGS |= {"mesh": "data=4,model=2", "steps": 50, "eval-every": 25, "checkpoint-every": 5, "vocabulary-multiple": 2}
FLAGS |= {"eval-batches": 1}
HELD_OUT = "".join(f"{n} and {n * n} are held out.\n" for n in range(1000))
PATIENCE = 300  # seconds until a test gives up
INTERRUPTED = "interrupted; rerun the command to "
SOON = SILENCE + 60  # seconds in which the others have to end; on a machine with other work


class Command:
    """The command line of one run, begun in any number of processes."""

    def __init__(self, directory):
        self.files, self.text = RunDirectory(directory / "run"), directory / "text.txt"
        self.text.write_text(TEXT)
        self._held_out = directory / "held_out.txt"
        self._held_out.write_text(HELD_OUT)
        self._directory, self._started = directory, []

    def start(self, index=0, count=1, port=0, variables=None, **flags):
        cache = self._directory / f"cache{index}"
        values = {"run": self.files.path, "data": self.text, "validation-data": self._held_out, "cache": cache}
        values |= FLAGS | flags
        if variables:
            values["coordinator"] = "auto"
        elif count > 1:
            values |= {"coordinator": f"127.0.0.1:{port}", "num-processes": count, "process-id": index}
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("XLA_")}
        environment = inherited | {
            "JAX_NUM_CPU_DEVICES": str(8 // count),
            "NPROC": "16",
            "JAX_COMPILATION_CACHE_DIR": str(self._directory.parent / "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            **(variables or {}),
        }
        self._started.append(training(values, environment, start_new_session=True))
        return self._started[-1]

    def start_all(self, count, of_last=None, **flags):
        port = free_port()
        last = {**flags, **(of_last or {})}
        return [self.start(i, count, port, **(last if i == count - 1 else flags)) for i in range(count)]

    def complete(self, count, **flags):
        for process in self.start_all(count, **flags):
            _, err = process.communicate(timeout=PATIENCE)
            assert process.returncode == 0, err

    def losses(self):
        return {line["step"]: line["loss"] for line in read_metrics(self.files.metrics)}

    def saved(self):
        return sorted(int(path.name) for path in self.files.checkpoints.glob("*") if path.name.isdigit())

    def end_all(self):
        for process in self._started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.stdout.close()
            process.stderr.close()


def free_port(among=(0,)):
    """The first that no process has; 0 stands for any."""
    for port in among:
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", port))
            return free.getsockname()[1]
    raise AssertionError(f"none is free among {among}")


@pytest.fixture
def command(tmp_path):
    command = Command(tmp_path)
    yield command
    command.end_all()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    command = Command(tmp_path_factory.mktemp("undisturbed"))
    command.complete(1, mesh="", **{"vocabulary-multiple": 2})
    return command


def worker_of(process):
    """The process that computes; the command only watches it."""
    return int(pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])


def assert_ended(process, status, *parts, before=()):
    """With this status, and one sentence that matches these parts, after the lines that were said before."""
    out, err = process.communicate(timeout=SOON)
    assert process.returncode == status, err
    *first, last = err.splitlines()
    assert (out, first) == ("", [*before]), err
    for part in parts:
        assert re.search(part, last)


def assert_same_outcome(command, undisturbed):
    losses, expected = command.losses(), undisturbed.losses()
    assert losses.keys() == expected.keys()
    np.testing.assert_allclose(list(losses.values()), list(expected.values()), rtol=2e-5)
    theta, wanted = (flatten(load_run(c.files.path).theta) for c in (command, undisturbed))
    assert theta.keys() == wanted.keys()
    for name, array in wanted.items():
        if not name.endswith("b_k"):  # it changes no softmax: Adam makes steps of what is rounded
            np.testing.assert_allclose(theta[name], array, rtol=1e-2, atol=2e-4, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
def test_processes_train_what_one_device_trains(command, undisturbed, count):
    command.complete(count, mesh="data=2,context=2,model=2" if count == 2 else "replica=2,data=4")
    assert_same_outcome(command, undisturbed)
    results = [json.loads(c.files.results.read_text()) for c in (command, undisturbed)]
    assert results[0] == pytest.approx(results[1], rel=2e-5)


@pytest.mark.slow
def test_what_slurm_says_is_found(command, undisturbed):
    first = 65535 - 2**12 + 1  # JAX takes the port from the number of the job
    job = {"SLURM_JOB_ID": free_port(range(first, 65535)) - first, "SLURM_STEP_NODELIST": "localhost"}
    job |= {"SLURM_NTASKS": 2}
    for process in [
        command.start(count=2, variables={k: str(v) for k, v in (job | task).items()})
        for task in ({"SLURM_PROCID": i, "SLURM_LOCALID": i} for i in range(2))
    ]:
        _, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, err
    assert_same_outcome(command, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "number"),
    [
        (1, signal.SIGKILL),
        (1, signal.SIGSTOP),
        (0, signal.SIGKILL),
    ],
)
@pytest.mark.parametrize("count", [1, 2])
def test_when_one_is_gone_the_other_ends_and_any_number_goes_on(command, undisturbed, victim, number, count):
    processes = command.start_all(2)
    wait_until(lambda: len(command.losses()) > 12, *processes)
    os.kill(worker_of(processes[victim]) if number == signal.SIGSTOP else processes[victim].pid, number)
    other = processes[1 - victim]
    assert_ended(other, 1, "is gone|lost another process", "the last checkpoint is of step", "restart all processes")
    command.end_all()
    assert command.saved()[-1] >= 10
    command.complete(count, mesh="data=8" if count == 1 else FLAGS["mesh"])
    assert_same_outcome(command, undisturbed)


@pytest.mark.thorough
@pytest.mark.end_to_end
def test_two_processes_stop_while_they_evaluate_and_end_when_one_is_killed_and_one_goes_on(command, undisturbed):
    processes = command.start_all(2, **{"eval-batches": 1000})
    wait_until(lambda: max(command.losses(), default=0) == 24, *processes)  # the line of step 25 awaits its evaluation
    time.sleep(0.5)
    processes[1].send_signal(signal.SIGTERM)
    for process, says in zip(processes, (INTERRUPTED + "resume from the last checkpoint\n", ""), strict=True):
        assert process.communicate(timeout=SOON) == ("", says)
        assert process.returncode == 143
    assert (max(command.losses()), command.saved()[-1]) == (24, 25)
    processes = command.start_all(2)
    wait_until(lambda: max(command.losses()) > 32, *processes)
    os.kill(processes[1].pid, signal.SIGKILL)
    says = (
        "another process is gone|lost another process",
        "the last checkpoint is of step",
        "restart all processes",
    )
    assert_ended(processes[0], 1, *says, before=["resuming after step 25"])
    command.end_all()
    command.complete(1, mesh="")
    assert_same_outcome(command, undisturbed)


@pytest.mark.end_to_end
@pytest.mark.parametrize("signaled", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_signal_before_the_training_begins_ends_all_at_the_first_update(command, signaled):
    processes = command.start_all(2)
    wait_until(command.files.config.exists, *processes)
    processes[signaled].send_signal(signal.SIGTERM)
    for process, says in zip(processes, (INTERRUPTED + "resume from the last checkpoint\n", ""), strict=True):
        assert process.communicate(timeout=SOON) == ("", says)
        assert process.returncode == 143
    assert command.saved()[-1] < 4


RESTORING = """
import pathlib, sys
import jax, numpy as np
import orbax.checkpoint as ocp
from training.mesh.processes import Processes
from training.runs.checkpoints import Checkpoints
processes = Processes()
processes.join(sys.argv[1], 2, int(sys.argv[2]))
divided = jax.NamedSharding(jax.make_mesh((2,), ("data",)), jax.P("data"))
W = jax.make_array_from_callback((6, 5), divided, lambda index: np.arange(30.0, dtype=np.float32).reshape(6, 5)[index])
restore = ocp.Checkpointer.restore
with Checkpoints(pathlib.Path(sys.argv[3]), max_to_keep=3) as checkpoints:
    for step in (1, 2):
        checkpoints.save(step, {"params": {"W": W * step}}, {})
    checkpoints.wait()
    for error in (MemoryError("no room"), ValueError("DATA_LOSS: bits"), None):
        def planted(self, path, **options):
            if error and processes.index == 1 and path.name == "2":
                raise error
            return restore(self, path, **options)
        ocp.Checkpointer.restore = planted
        try:
            found = checkpoints.restore_latest({"params": {"W": W}}, lambda text: print("warned:", text.split(";")[0]))
            print("found:", found.step, float(found.trees["params"]["W"].sum()), checkpoints.steps())
        except Exception as raised:
            print("raised:", type(raised).__name__, str(raised).replace(sys.argv[3], "DIR"), checkpoints.steps())
processes.leave()
"""


@pytest.mark.end_to_end
def test_a_checkpoint_that_one_process_cannot_read_is_restored_by_none(tmp_path):
    """And damage that one process finds moves it away once, for all."""
    command = [sys.executable, "-c", RESTORING, f"127.0.0.1:{free_port()}"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_NUM_CPU_DEVICES": "1"}
    both = [
        subprocess.Popen([*command, str(i), tmp_path / "c"], env=environment, stdout=subprocess.PIPE, text=True)
        for i in range(2)
    ]
    outputs = [process.communicate(timeout=PATIENCE)[0].splitlines() for process in both]
    told = [[line for line in out if re.match("(raised|warned|found): ", line)] for out in outputs]
    first = ["raised: CheckpointError process 1 cannot read DIR/2: no room; nothing was changed [2, 1]"]
    first += ["raised: MemoryError no room [2, 1]"]
    later = ["warned: the checkpoint of step 2 is damaged (DATA_LOSS: bits)", *["found: 1 435.0 [1]"] * 2]
    assert told == [[line, *later] for line in first]
    assert [path.name for path in (tmp_path / "c-damaged").iterdir()] == ["2-1"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("of_last", "sentence"),
    [
        ({"seed": 1}, "process 1 has seed 1, and process 0 0: start all of them with the same command"),
        ({"data": "other"}, "process 1 has data ["),
        ({"run": "elsewhere"}, "--run: expected a directory that all processes share, got"),
        ({"mesh": "data=2,model=4"}, "process 1 has mesh data=2,model=4, and process 0 data=4,model=2"),
    ],
)
def test_processes_that_differ_are_refused_in_each(command, tmp_path, of_last, sentence):
    other = tmp_path / "other.txt"
    other.write_text(TEXT.replace("says", "said"))
    last = {name: {"other": other, "elsewhere": tmp_path / "elsewhere"}.get(v, v) for name, v in of_last.items()}
    for process in command.start_all(2, of_last=last):
        _, err = process.communicate(timeout=PATIENCE)
        assert process.returncode in (1, 2), err
        assert len(err.splitlines()) == 1
        assert sentence in err
    assert not command.files.config.exists()


@pytest.mark.slow
def test_settings_that_cannot_be_are_said_before_connecting(command):
    process = command.start(1, 2, mesh="data=3,model=2")
    says = "train.py: batch_size is 8, which data=3 does not divide: give batch_size 9\n"
    assert process.communicate(timeout=PATIENCE) == ("", says)
    assert process.returncode == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("localhost", 2, 0), r"--coordinator: expected HOST:PORT or auto, got 'localhost'"),
        (("localhost:1", None, 0), r"--coordinator: expected --num-processes and --process-id with it, got none"),
        (("localhost:1", 2, 2), r"--process-id: expected 0 to 1, one less than --num-processes, got 2"),
    ],
)
def test_invalid_counts_fail_before_connecting(arguments, message):
    with pytest.raises(ProcessesError, match=message):
        Processes().join(*arguments)


def test_without_a_cluster_the_flags_are_named(monkeypatch):
    def initialize(*_, **__):
        raise ValueError("coordinator_address should be defined")

    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    says = r"--coordinator: expected a cluster that JAX detects, got none \(.*\); give HOST:PORT, --num-processes and"
    with pytest.raises(ProcessesError, match=says):
        Processes().join("auto", None, None)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the pipe ends with the process
def test_a_coordinator_that_never_comes_is_said(monkeypatch, capsys):
    monkeypatch.setattr(supervision, "WORKER", "import os; os.abort()")  # as JAX does after its timeout
    assert supervision.supervise([], who="process 1", advice=lambda: "restart all") == 1
    said = "process 1 found no coordinator, or not all of the others, or its port is taken; restart all (JAX's log is "
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--num-processes", "--process-id"])
def test_processes_do_not_train_alone_for_want_of_a_coordinator(tmp_path, called, flag):
    sentence = "--coordinator: expected HOST:PORT, the same for all --num-processes, got none; give it"
    assert called("train", "d", "--run", tmp_path / "run", flag, 1) == (2, "", f"train.py: {sentence}\n")
    assert not (tmp_path / "run").exists()


class ToldFacts:
    """The coordinator's store, of processes that have all told what they have."""

    def __init__(self, **facts):
        self._facts = facts

    def put(self, name, text):
        self._facts[name] = text

    def wait_for(self, name, _):
        return self._facts[name]


@pytest.mark.parametrize("index", [0, 1, 2])
def test_the_first_difference_is_said_in_every_process(index):
    processes, facts = Processes(), [{"a": 1, "b": "x"}, {"a": 1, "b": "y"}, {"a": 2, "b": "x"}]
    processes.index, processes.count = index, 3
    processes._store = ToldFacts(**{f"facts/{i}": json.dumps(f) for i, f in enumerate(facts)})
    with pytest.raises(ProcessesError, match=r"process 1 has b y, and process 0 x: start all of them with the same"):
        processes.agree("facts", facts[index])
    Processes().agree("facts", facts[0])


def test_only_two_files_reach_inside_jax():
    """For its store between processes, and the version of cuDNN."""
    inside = [path for path in (ROOT / "training").rglob("*.py") if "jax._src" in path.read_text("utf-8")]
    inside += [path for path in (ROOT / "algorithms").rglob("*.py") if "jax._src" in path.read_text("utf-8")]
    assert [path.name for path in inside] == ["coordinator.py", "vendor.py"]
