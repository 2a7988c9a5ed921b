"""Files that are written whole or not at all, by any number of writers, even if some are killed."""

import re
import subprocess
import sys
import threading

import pytest

from training.disk import remove_unfinished, write_atomically

KILLED = """
import os, pathlib, signal, sys
from training.disk import write_atomically
def write(path):
    if sys.argv[2] == "folder":
        path.mkdir()
        path = path / "kept"
    path.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
write_atomically(pathlib.Path(sys.argv[1]), write)
"""


def kill_a_writer(path, kind):
    assert subprocess.run([sys.executable, "-c", KILLED, str(path), kind], check=False).returncode == -9
    assert not path.exists()


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_a_killed_writer_left_is_removed_and_not_what_a_living_one_writes(tmp_path, kind):
    begun, go_on = threading.Event(), threading.Event()

    def write(path):
        path.write_text("first half, ")
        begun.set()
        assert go_on.wait(60)
        with path.open("a") as file:
            file.write("second half")

    living = threading.Thread(target=write_atomically, args=(tmp_path / "living", write))
    living.start()
    assert begun.wait(60)
    kill_a_writer(tmp_path / "killed", kind)
    assert len(list(tmp_path.glob(".unfinished-*"))) == 4  # with locks
    remove_unfinished(tmp_path)
    assert {re.match(r"\.unfinished-(\w+)", path.name)[1] for path in tmp_path.iterdir()} == {"living"}
    kill_a_writer(tmp_path / "killed", kind)
    write_atomically(tmp_path / "killed", lambda path: path.write_text("whole"))
    go_on.set()
    living.join()
    texts = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert texts == {"killed": "whole", "living": "first half, second half"}


@pytest.mark.parametrize(("again", "expected"), [(True, ["a", "b"]), (False, ["a"])])
def test_writers_of_the_same_file_wait_for_each_other(tmp_path, again, expected):
    written, begun = [], threading.Event()

    def writer(name):
        def write(path):
            begun.set()
            path.write_text(name)
            written.append(name)
            assert [found.read_text() for found in tmp_path.glob(".unfinished-file-*")] == [name]

        return threading.Thread(target=write_atomically, args=(tmp_path / "file", write), kwargs={"again": again})

    first, second = writer("a"), writer("b")
    first.start()
    assert begun.wait(60)
    second.start()
    first.join()
    second.join()
    assert written == expected
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("file", expected[-1])]


def test_a_writer_that_fails_leaves_what_was_there(tmp_path):
    (tmp_path / "file").write_text("before")

    def write(path):
        path.write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left on device"):
        write_atomically(tmp_path / "file", write)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("file", "before")]
