"""Training, generation and chat templates on a system that has none of what only POSIX has."""

import json
import os
import subprocess
import sys
import types
from pathlib import Path

import psutil
import pytest

from tests.run_cases import conversing, make_run
from training import system
from training.loop import cost

ROOT = Path(__file__).resolve().parents[2]
# What Windows's Python lacks, hidden from our modules in every process of a command.
HIDDEN = """
import asyncio, builtins, os, signal, sys  # asyncio's own way on POSIX needs what is hidden

for module, names in {
    os: ("O_NOFOLLOW", "geteuid", "sched_getaffinity", "sysconf"),
    signal: ("ITIMER_PROF", "SIGPIPE", "SIGPROF", "setitimer"),
}.items():
    for name in names:
        delattr(module, name)
sys.modules["readline"] = None
found = builtins.__import__

def without(name, globals=None, *rest, **named):
    own = (globals or {}).get("__name__", "").split(".")[0]
    if name in ("fcntl", "grp", "pwd", "resource", "termios") and own in ("algorithms", "training"):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return found(name, globals, *rest, **named)

builtins.__import__ = without
"""
TEXT = "".join(f"The {n}th paragraph says that {n} and {n + 1} are {2 * n + 1}.\n\n" for n in range(200))
FLAGS = ("--tokenizer=bytes", "--batch-size=4", "--schedule=constant", "--L=1", "--H=2", "--d_e=8", "--d_mlp=8")
FLAGS += ("--l_max=16",)


@pytest.fixture
def elsewhere(tmp_path):
    """Run a command, or a program, there; return what it printed."""
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "sitecustomize.py").write_text(HIDDEN)
    path = os.pathsep.join(map(str, (tmp_path / "hidden", ROOT)))
    environment = os.environ | {"PYTHONPATH": path, "XDG_CACHE_HOME": str(tmp_path / "cache")}

    def run(*words):
        command = [sys.executable, *map(str, words)]
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done

    return run


@pytest.mark.end_to_end
def test_a_run_is_trained_continued_and_sampled(elsewhere, tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    for steps in (2, 4):
        words = ("d", "--run", "run", "--data", "a.txt", *FLAGS, f"--steps={steps}")
        assert "The run is in run." in elsewhere(ROOT / "scripts/train.py", *words).stdout
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert elsewhere(ROOT / "scripts/generate.py", "run", "--prompt", "The", "--l_gen", 5).stdout
    elsewhere(ROOT / "scripts/evaluate.py", "run")


@pytest.mark.end_to_end
def test_a_conversation_is_answered(elsewhere, tmp_path):
    make_run(tmp_path / "run", "d", conversing(), l_max=200)
    assert elsewhere(ROOT / "scripts/generate.py", "run", "--chat", "--prompt", "hi", "--l_gen", 5).stdout


def test_a_template_that_takes_long_ends(elsewhere):
    program = """
from training.data import chat
chat.SECONDS = 1
try:
    loops = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    chat.ChatTemplate(loops).render([{"role": "user", "content": "a"}])
except ValueError as error:
    print(error)
"""
    assert elsewhere("-c", program).stdout.endswith("it takes longer than 1 s\n")


def test_what_the_system_does_not_say(elsewhere):
    program = "from training import system; print(system.peak_memory(), system.memory_limit(), system.OUT_OF_TIME)"
    assert elsewhere("-c", program).stdout == f"0 {sys.maxsize} 124\n"


def test_what_it_says_here():
    assert 1 << 20 < system.peak_memory() < system.memory_limit() < sys.maxsize


def test_the_memory_of_a_process_is_that_of_its_control_groups(tmp_path, monkeypatch):
    """The smallest limit of a group and those around it, and what is used without the page cache."""
    monkeypatch.setattr(system, "PROC", tmp_path / "proc")
    monkeypatch.setattr(system, "GROUPS", tmp_path / "groups")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: types.SimpleNamespace(available=900 << 20))
    machine = system.memory_limit()
    groups = {"": ("max", 800, 0, 0), "a": ("500", 450, 100, 50), "a/b": ("600", 100, 0, 0), "c": ("1", 1, 0, 0)}
    for name, (limit, used, active, inactive) in groups.items():
        folder = tmp_path / "groups" / name
        folder.mkdir()
        (folder / "memory.max").write_text(limit if limit == "max" else str(int(limit) << 20))
        (folder / "memory.current").write_text(f"{used << 20}\n")
        stat = f"anon 1\nactive_file {active << 20}\ninactive_file {inactive << 20}\nfile {active << 21}\n"
        (folder / "memory.stat").write_text(stat)
    assert system.available_memory() == 900 << 20  # nothing says which group it is in
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text("1:name=systemd:/c\n0::/a/b\n")
    assert system.memory_limit() == 500 << 20 < machine
    assert system.available_memory() == (500 - 450 + 150) << 20
    assert cost.limit(2) == 250 << 20  # by which a batch is split
