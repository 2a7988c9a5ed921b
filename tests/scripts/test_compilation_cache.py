"""A command with the compilation cache: the same answer as without it, whatever is in it."""

import os
import pathlib
import subprocess
import sys

from tests.run_cases import make_run

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "generate.py"


def test_a_spoilt_or_useless_directory_changes_no_answer(tmp_path):
    run, home, spoilt = make_run(tmp_path / "run", "d"), tmp_path / "home", tmp_path / "spoilt"
    inherited = {name: value for name, value in os.environ.items() if "COMPILATION_CACHE" not in name}

    def asked(cache):
        words = [sys.executable, SCRIPT, run, "--prompt", "abc", "--l_gen", "5", "--compilation-cache", cache]
        environment = inherited | {"XDG_CACHE_HOME": str(home)}
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
        return done.stdout, done.stderr

    expected = asked("off")
    assert not list(home.rglob("*-cache"))
    assert asked(spoilt) == expected
    for path in (files := list(spoilt.rglob("*-cache"))):
        path.write_bytes(path.read_bytes()[:-9])
    assert files
    out, err = asked(spoilt)
    assert (out, "Error reading persistent compilation cache entry" in err) == (expected[0], True)
    out, err = asked(run / "config.json" / "programs")
    assert (out, err.count("\n")) == (expected[0], 1)
    assert "cannot keep compiled programs" in err
