"""Where compiled programs are kept, how many, and whose; that JAX loads them is tested with the commands."""

import argparse
import os

import jax
import pytest

from training.command_line import compilation_cache

NAMES = ("dir", "min_compile_time_secs", "enable_xla_caches")
SETTINGS = ("jax_compilation_cache_dir", *(f"jax_persistent_cache_{name}" for name in NAMES[1:]))


@pytest.fixture
def begin(tmp_path, monkeypatch):
    """Begin a command with flags; return the directory of JAX's cache, below the test's. Undone at the end."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NPROC", "5")
    monkeypatch.setattr(compilation_cache, "cores", lambda: 3)
    before = {name: getattr(jax.config, name) for name in SETTINGS}

    def of(*words, alone=True):
        parser = argparse.ArgumentParser()
        compilation_cache.add_flags(parser)
        compilation_cache.begin(parser.parse_args([str(word) for word in words]), alone=alone)
        found = jax.config.jax_compilation_cache_dir
        return found and os.path.relpath(found, tmp_path)

    yield of
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@pytest.mark.parametrize(
    ("flag", "variable", "alone", "expected"),
    [
        (None, None, True, "home/formal-algorithms/programs/3-5"),
        (None, None, False, None),
        (None, "other", False, "other"),
        (None, "", True, None),
        ("named", "other", True, "named/3-5"),
        ("named", None, False, "named"),
        ("off", "other", True, None),
    ],
)
def test_the_flag_comes_before_the_variable(tmp_path, begin, flag, variable, alone, expected):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / variable) if variable else variable)
    words = [] if flag is None else ["--compilation-cache", "off" if flag == "off" else tmp_path / flag]
    assert begin(*words, alone=alone) == expected


def test_the_least_recently_used_go_and_nothing_else(tmp_path, begin, monkeypatch):
    monkeypatch.setattr(compilation_cache, "LIMIT", 450)
    programs = tmp_path / "programs"
    (programs / "3-5").mkdir(mode=0o700, parents=True)
    programs.chmod(0o700)
    for i, name in enumerate("abcde"):
        path = programs / "3-5" / f"{name}-cache"
        path.write_bytes(bytes(150))
        os.utime(path, (99 if name == "b" else i, i))  # b was read last
    (programs / "thesis.tex").write_bytes(bytes(1000))
    begin("--compilation-cache", programs)
    assert sorted(path.name for path in programs.rglob("*-cache")) == ["b-cache", "d-cache", "e-cache"]
    begin("--compilation-cache", programs, "--clear-compilation-cache")
    assert [path.name for path in programs.rglob("*") if path.is_file()] == ["thesis.tex"]


def test_a_directory_that_others_may_write_or_that_cannot_be_made_is_not_used(tmp_path, begin, capsys):
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    (tmp_path / "file").touch()
    for place, why in ((tmp_path / "shared", "others may write there"), (tmp_path / "file" / "x", "Not a directory")):
        assert begin("--compilation-cache", place) is None
        assert f"cannot keep compiled programs{':' if 'others' in why else ''}" in (said := capsys.readouterr().err)
        assert why in said
