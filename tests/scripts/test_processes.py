"""The commands as processes: signals, pipes, a full disk, and another process in the same directory."""

import errno
import fcntl
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from tests.run_cases import BYTES, make_run
from training.runs.directory import RunDirectory, RunError

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPTS = sorted(path.name for path in (ROOT / "scripts").glob("*.py"))
TEXT = "".join(f"The {n}th paragraph says that {n} and {n + 1} are {2 * n + 1}.\n\n" for n in range(400))
FLAGS = ("--tokenizer=bytes", "--batch-size=4", "--steps=6", "--peak=1e12", "--L=1", "--H=2", "--l_max=16", "--quiet")
FLAGS += ("--optimizer=adamw",)


def begin(*command, **options):
    words = [str(word) for word in command]
    pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen([sys.executable, *words], text=True, **pipes, **options)


def ended(process):
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


@pytest.mark.sampled(3)
@pytest.mark.parametrize("script", SCRIPTS)
def test_ctrl_c_while_the_libraries_load_is_quiet(script):
    process = begin(ROOT / "scripts" / script, "--help", env=os.environ | {"PYTHONVERBOSE": "1"})
    for line in process.stderr:  # Python says what it imports
        if "jax" in line:
            process.send_signal(signal.SIGINT)
            break
    status, out, err = ended(process)
    assert status in (0, 130)  # it was over before
    assert "Traceback" not in err
    assert status == 130 or out.startswith("usage: ")


def test_a_run_has_one_process_at_a_time(tmp_path):
    """The lock file that a killed process left does not matter."""
    files = RunDirectory(tmp_path / "run")
    files.path.mkdir()
    (files.path / ".lock").touch()
    with files.locked(pytest.fail):
        assert not files.exists()  # a lock is no run
        with pytest.raises(RunError, match="another process trains in"):
            RunDirectory(tmp_path / "run").locked(pytest.fail).__enter__()
        (files.path / "kept").touch()
    assert [path.name for path in files.path.iterdir()] == ["kept"]
    with RunDirectory(tmp_path / "new").locked(pytest.fail):
        assert (tmp_path / "new").is_dir()
    assert not (tmp_path / "new").exists()  # nothing was written


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_without_locks_training_goes_on_with_a_warning(tmp_path, monkeypatch, number):
    def flock(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    said = []
    with RunDirectory(tmp_path / "run").locked(said.append):
        (tmp_path / "run" / "kept").touch()
    assert said == [f"the file system of {tmp_path / 'run'} has no locks: make sure that no other process trains there"]
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["kept"]


@pytest.fixture
def names(tmp_path):
    """What capital words of a command line stand for."""
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    return {"RUN": make_run(tmp_path / "run", "d", BYTES, data=[str(text)]), "TEXT": text, "OUT": tmp_path / "out"}


WORK = {
    "generate.py": ["RUN", "--l_gen", 5, *40 * ["--prompt", "abc"]],  # of which 32 are answered and printed at once
    "evaluate.py": ["RUN"],
    "convert.py": ["RUN", "OUT", "--to", "gpt2"],
    "train.py": ["d", "--data", "TEXT", "--run", "OUT", *(flag for flag in FLAGS if flag != "--quiet")],
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("script", "lines", "statuses"),
    [
        ("generate.py", 0, {141}),
        ("generate.py", 1, {141}),
        ("evaluate.py", 0, {141}),
        ("evaluate.py", 1, {0, 141}),  # all may have been printed before the reader leaves
        ("convert.py", 0, {141}),
        ("train.py", 1, {141}),
    ],
)
def test_who_has_read_enough_is_not_told_of_a_pipe(tmp_path, names, script, lines, statuses):
    """Where a training says how it goes, it ends there, as others do; it can go on."""
    words = [str(names.get(word, word)) for word in WORK[script]]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT if script == "train.py" else subprocess.PIPE}
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [sys.executable, ROOT / "scripts" / script, *words]
    process = subprocess.Popen(command, env=environment, text=True, **streams)
    read = [process.stdout.readline() for _ in range(lines)]
    process.stdout.close()
    if process.stderr:
        with process.stderr:
            assert process.stderr.read() == ""
    assert process.wait(120) in statuses
    assert all(line.endswith("\n") and "Traceback" not in line for line in read)
    if script == "convert.py":
        assert (tmp_path / "out" / "model.safetensors").is_file()
    if script == "train.py":
        assert not (tmp_path / "out" / "parameters.safetensors").exists()
        assert ended(begin(ROOT / "scripts" / script, *words, env=environment))[0] == 0
