"""What is kept of compiled programs: whatever happens to the files, a program is the one that was kept, or none."""

import argparse
import concurrent.futures
import errno
import hashlib
import os
import pathlib

import jax
import jax.numpy as jnp
import pytest
from jax._src import compilation_cache as private
from jax._src import monitoring

from training.command_line import compilation_cache, compiled_programs
from training.command_line.compiled_programs import Programs

HIT, MISS = "/jax/compilation_cache/cache_hits", "/jax/compilation_cache/cache_misses"
SETTINGS = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_enable_xla_caches",
)


@pytest.fixture
def said():
    return []


@pytest.fixture
def programs(tmp_path, said):
    return Programs(tmp_path / "made" / "programs", limit=1000, warn=said.append)


@pytest.fixture
def jax_as_before():
    """Undo what a test makes of JAX's own cache."""
    before, store = {name: getattr(jax.config, name) for name in SETTINGS}, private.get_file_cache
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    private.get_file_cache = store
    compiled_programs.reset_cache()


def the_file(programs):
    (path,) = programs._files()
    return path


def test_a_program_is_kept_for_this_user_alone(programs):
    assert programs.get("a") is None
    programs.put("a", b"one")
    assert programs.get("a") == b"one"
    assert programs.get("b") is None
    assert the_file(programs).stat().st_mode & 0o777 == 0o600
    assert the_file(programs).parent.stat().st_mode & 0o777 == 0o700
    programs.put("a", b"two")  # XLA is not always deterministic: the last one counts
    assert programs.get("a") == b"two"


def flipped(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


SPOIL = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "emptied": lambda path: path.write_bytes(b""),
    "flipped": flipped,
    "others may write": lambda path: path.chmod(0o622),
    "linked": lambda path: path.rename(path.with_name("elsewhere")) and path.symlink_to("elsewhere"),
    "a pipe": lambda path: path.unlink() or os.mkfifo(path),
    "a folder": lambda path: path.unlink() or path.mkdir(),
}


@pytest.mark.parametrize("spoil", SPOIL)
def test_a_file_that_is_not_what_was_kept_is_not_read(programs, said, spoil):
    programs.put("a", b"one")
    SPOIL[spoil](the_file(programs))
    assert programs.get("a") is None
    programs.put("a", b"one")
    if spoil != "a folder":
        assert programs.get("a") == b"one"
        assert said == []


def test_a_file_of_another_user_is_not_read(programs, monkeypatch):
    programs.put("a", b"one")
    monkeypatch.setattr(os, "geteuid", lambda: the_file(programs).stat().st_uid + 1)
    assert programs.get("a") is None


def test_a_program_under_the_name_of_another_is_not_read(programs):
    programs.put("a", b"one")
    path = the_file(programs)
    path.rename(path.with_name(path.name.replace("a", "b", 1)))
    assert programs.get("b") is None


def test_a_program_for_another_number_of_threads_is_another(programs, monkeypatch):
    programs.put("a", b"one")
    monkeypatch.setenv("NPROC", "3")
    assert programs.get("a") is None
    monkeypatch.undo()
    monkeypatch.setattr(compiled_programs, "cores", lambda: 5)
    assert programs.get("a") is None


def test_those_that_were_not_used_for_longest_go(programs):
    for i, name in enumerate("abcde"):
        programs.put(name, bytes(150))
        os.utime(programs._path(name), (i, i))
    assert programs.get("a")  # used now
    programs.put("f", bytes(150))
    assert [name for name in "abcdef" if programs.get(name)] == ["a", "d", "e", "f"]
    assert sum(path.stat().st_size for path in programs._files()) <= 0.9 * 1000
    programs.put("g", bytes(1000))  # larger than all may be together
    assert not programs.get("g")


def test_what_others_keep_counts(tmp_path, programs, said):
    for other in range(3):
        Programs(tmp_path / "made" / "programs", limit=1000, warn=said.append).put(f"a{other}", bytes(300))
    programs.put("b", bytes(300))
    assert sum(path.stat().st_size for path in programs._files()) <= 1000
    assert programs.get("b")


def test_files_that_nobody_finishes_go(programs):
    programs.put("a", b"one")
    left = the_file(programs).with_name("left.unfinished")
    for age, stays in ((10, True), (10_000, False)):
        left.touch()
        os.utime(left, (left.stat().st_mtime - age,) * 2)
        Programs(left.parent, limit=1000, warn=print).put("b", b"two")
        assert left.exists() == stays


def test_nothing_but_programs_is_removed(programs, said):
    programs.put("a", b"one")
    mine = the_file(programs).with_name("thesis.tex")
    mine.touch()
    programs.clear()
    assert programs.get("a") is None
    assert mine.exists()
    Programs(mine.parent / "absent", warn=said.append).clear()
    assert said == []


def test_a_full_disk_is_said_once_and_leaves_nothing(programs, said, monkeypatch):
    def full(self, target):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    programs.put("a", b"one")
    monkeypatch.setattr(pathlib.Path, "replace", full)
    programs.put("b", b"two")
    programs.put("c", b"three")
    (sentence,) = said
    assert "No space left on device" in sentence
    assert "--compilation-cache" in sentence
    assert programs.get("a") == b"one"
    assert len(programs._files()) == 1


def test_a_directory_that_cannot_be_made_is_said_once(tmp_path, said):
    (tmp_path / "file").touch()
    programs = Programs(tmp_path / "file" / "programs", warn=said.append)
    programs.put("a", b"one")
    programs.put("b", b"two")
    assert programs.get("a") is None
    assert len(said) == 1


def test_many_may_write_and_read_at_once(tmp_path, said):
    """Each call has a store of its own, as in a process of its own."""

    def work(i):
        programs = Programs(tmp_path, limit=20_000, warn=said.append)
        for j in range(30):
            name = f"k{(i * 7 + j) % 5}"
            found = programs.get(name)
            assert found in (None, name.encode() * 1000)
            programs.put(name, name.encode() * 1000)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert said == []
    assert not list(tmp_path.glob("*.unfinished"))


def test_jax_keeps_and_loads_its_programs(tmp_path, said, jax_as_before):
    events = []

    def note(event, **_):
        events.append(event)

    monitoring.register_event_listener(note)
    x = jnp.arange(7.0)

    def compute():
        events.clear()
        found = jax.jit(lambda x: (x * jnp.sin(x)).sum())(x)  # a new function: JAX remembers nothing of it
        return float(found), events.count(HIT), events.count(MISS)

    compiled_programs.keep_programs_in(str(tmp_path), warn=said.append)
    value, hits, misses = compute()
    assert (hits, misses > 0) == (0, True)
    assert compute() == (value, misses, 0)
    for path in tmp_path.iterdir():
        flipped(path)
    assert compute() == (value, 0, misses)
    for path in tmp_path.iterdir():  # what is whole, but no program
        path.write_bytes(hashlib.sha256(path.name.encode() + b"\0" + b"hostile").digest() + b"hostile")
    with pytest.warns(UserWarning, match="Error reading persistent compilation cache entry"):
        assert compute()[0] == value
    assert compute() == (value, misses, 0)
    assert said == []
    monitoring.unregister_event_listener(note)


@pytest.mark.parametrize(
    ("flag", "variable", "alone", "expected"),
    [
        (None, None, True, "home/formal-algorithms/programs"),
        (None, None, False, None),
        (None, "other", False, "other"),
        (None, "", True, None),
        ("named", "other", True, "named"),
        ("named", None, False, "named"),
        ("off", "other", True, None),
    ],
)
def test_the_flag_comes_before_the_variable(tmp_path, monkeypatch, jax_as_before, flag, variable, alone, expected):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / variable) if variable else variable)
    parser = argparse.ArgumentParser()
    compilation_cache.add_flags(parser)
    words = [] if flag is None else ["--compilation-cache", "off" if flag == "off" else str(tmp_path / flag)]
    compilation_cache.begin(parser.parse_args(words), alone=alone)
    assert jax.config.jax_compilation_cache_dir == (str(tmp_path / expected) if expected else None)


def test_a_store_may_be_emptied_first(tmp_path, said, jax_as_before):
    programs = Programs(tmp_path, warn=said.append)
    programs.put("a", b"one")
    parser = argparse.ArgumentParser()
    compilation_cache.add_flags(parser)
    compilation_cache.begin(parser.parse_args(["--clear-compilation-cache", "--compilation-cache", str(tmp_path)]))
    assert programs.get("a") is None


@pytest.mark.parametrize("home", ["jax._src.moved", "jax.numpy"])
def test_where_jax_makes_its_store_elsewhere_its_own_is_used(tmp_path, said, jax_as_before, monkeypatch, home):
    before = private.get_file_cache
    monkeypatch.setattr(compiled_programs, "HOME", home)
    compiled_programs.keep_programs_in(str(tmp_path / "kept"), warn=said.append)
    assert "store of its own" in said[0]
    assert private.get_file_cache is before
    jax.jit(lambda x: x + 42)(jnp.ones(7))
    assert list((tmp_path / "kept").iterdir())
