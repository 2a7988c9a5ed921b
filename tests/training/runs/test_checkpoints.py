"""Checkpoints: what is saved comes back, and whatever is done to the files is noticed."""

import errno
import json
import os
import shutil
from typing import NamedTuple

import chex
import numpy as np
import orbax.checkpoint as ocp
import pytest

from tests.run_cases import files_end_at
from training.runs import restoring
from training.runs.checkpoints import CheckpointError, Checkpoints, DamagedError, read_checkpoint, saved_steps
from training.runs.named_arrays import checksums, flatten


class Pair(NamedTuple):
    W: np.ndarray
    b: np.ndarray | None


def trees(seed=0, n=50):
    rng = np.random.default_rng(seed)
    params = Pair(rng.standard_normal((n, 31)).astype(np.float32), None)
    state = (Pair(np.array(True), np.int32(7)), {"count": np.arange(3)})
    return {"params": params, "state": state}


@pytest.fixture(scope="module")
def of_three(tmp_path_factory):
    """A directory that keeps two checkpoints, after three were saved."""
    path = tmp_path_factory.mktemp("saved") / "c"
    with Checkpoints(path, max_to_keep=2) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(step, trees(step), {"step": step, "x": 0.1})
    return path


@pytest.fixture
def saved(of_three, tmp_path):
    """A copy of them."""
    with Checkpoints(shutil.copytree(of_three, tmp_path / "c"), max_to_keep=2) as checkpoints:
        yield checkpoints


def assert_restored(restored, step):
    assert (restored.step, restored.meta) == (step, {"step": step, "x": 0.1})
    chex.assert_trees_all_equal(flatten(restored.trees), flatten(trees(step)), strict=True)


def save_and_wait(checkpoints, step, trees):
    checkpoints.save(step, trees, {})
    checkpoints.wait()


def largest_file(checkpoints, step, item):
    files = [path for path in (checkpoints._directory / str(step) / item).rglob("*") if path.is_file()]
    return max(files, key=lambda path: path.stat().st_size)


def test_the_newest_are_kept_and_come_back(saved):
    assert saved.steps() == [3, 2]
    assert_restored(saved.restore_latest(trees(), pytest.fail), 3)
    assert_restored(read_checkpoint(saved._directory, 2, trees()), 2)
    only = read_checkpoint(saved._directory, 3, {"params": trees()["params"]})
    np.testing.assert_array_equal(only.trees["params"].W, trees(3)["params"].W)
    assert only.trees["params"].b is None


def test_arrays_are_copied_before_they_change(tmp_path):
    checkpoints = Checkpoints(tmp_path / "c", max_to_keep=1)
    W = np.zeros((1000, 1000), np.float32)
    checkpoints.save(1, {"params": {"W": W}}, {})
    W += 1
    checkpoints.wait()
    restored = checkpoints.restore_latest({"params": {"W": W}}, pytest.fail)
    assert restored is not None
    assert not restored.trees["params"]["W"].any()
    checkpoints.close()


def flipped(data):
    data = bytearray(data)
    data[len(data) // 2] ^= 4
    return data


DAMAGE = {
    "a bit": ("params", flipped),
    "the last byte": ("state", lambda data: data[:-1]),
    "all bytes": ("params", lambda data: b""),
    "a file": ("params", None),
    "the description": ("meta", lambda data: data.replace(b"0.1", b"0.2")),
}


def damage(checkpoints, what, step=3):
    item, change = DAMAGE[what]
    path = largest_file(checkpoints, step, item)
    path.write_bytes(change(path.read_bytes())) if change else path.unlink()


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_it_restored(saved, what):
    damage(saved, what)
    warnings = []
    assert_restored(saved.restore_latest(trees(), warnings.append), 2)
    assert len(warnings) == 1
    assert "the checkpoint of step 3 is damaged" in warnings[0]
    assert (saved._directory.parent / "c-damaged" / "3-1").is_dir()
    assert saved.steps() == [2]
    saved.save(3, trees(3), {"step": 3, "x": 0.1})  # training gets there again
    saved.wait()
    assert_restored(saved.restore_latest(trees(), pytest.fail), 3)


def test_no_sound_checkpoint_is_an_error(saved):
    damage(saved, "a bit")
    damage(saved, "all bytes", step=2)
    for _ in range(2):  # the next start finds none, and does not begin anew
        with pytest.raises(CheckpointError, match=r"all checkpoints in .* are damaged and set aside in .*; to resume"):
            saved.restore_latest(trees(), lambda _: None)


DISK = "UNKNOWN: Error reading local file \"d/1\" [os_error_code='5'] [tensorstore_spec='{}']"
NO_DAMAGE = {
    "memory": (MemoryError(), MemoryError),
    "a disk": (OSError(errno.EIO, os.strerror(errno.EIO)), OSError),
    "tensorstore's disk": (ValueError(DISK), OSError),
    "tensorstore's memory": (ValueError("RESOURCE_EXHAUSTED: cannot allocate"), ValueError),
    "rights": (PermissionError(errno.EACCES, os.strerror(errno.EACCES)), PermissionError),
    "a fault of the library": (TypeError("restore() got an unexpected argument"), TypeError),
}


@pytest.mark.parametrize("what", NO_DAMAGE)
def test_what_says_nothing_about_a_checkpoint_moves_nothing(saved, monkeypatch, what):
    planted, raised = NO_DAMAGE[what]

    def restore(*_, **__):
        raise planted

    before = sorted(saved._directory.parent.rglob("*"))
    with monkeypatch.context() as patch:
        patch.setattr(ocp.Checkpointer, "restore", restore)
        with pytest.raises(raised) as found:
            saved.restore_latest(trees(), pytest.fail)
    assert "tensorstore_spec" not in str(found.value)
    assert sorted(saved._directory.parent.rglob("*")) == before
    assert_restored(saved.restore_latest(trees(), pytest.fail), 3)


@pytest.mark.parametrize("n", [50, 51])
def test_other_arrays_than_were_saved_are_no_damage(saved, n):
    other = trees(n=n)
    says = r"expected params.W: float32\[51, 31\], got float32\[50, 31\]; another version of this code or of"
    if n == 50:
        other["state"][1]["trace"] = np.zeros(3)
        says = r"expected state.1.trace: float64\[3\], got none; another version of this code or of optax wrote it: use"
    with pytest.raises(CheckpointError, match=says) as raised:
        saved.restore_latest(other, pytest.fail)
    assert not isinstance(raised.value, DamagedError)
    assert saved.steps() == [3, 2]


@pytest.mark.parametrize(
    ("mine", "theirs", "raised"),
    [
        (None, None, None),
        (None, [True, "a checksum"], DamagedError("a checksum")),
        (DamagedError("a checksum"), None, DamagedError("a checksum")),
        (
            None,
            [False, "no room"],
            CheckpointError("process 1 cannot read c: no room; nothing was changed"),
        ),
        (DamagedError("a checksum"), [False, "x"], CheckpointError("process 1 cannot read c: x; nothing was changed")),
        (MemoryError("mine"), [True, "a checksum"], MemoryError("mine")),
        (MemoryError("mine"), [False, "x"], MemoryError("mine")),
    ],
)
def test_processes_agree_on_what_reading_found(tmp_path, monkeypatch, mine, theirs, raised):
    def act():
        if mine:
            raise mine
        return 5

    monkeypatch.setattr(restoring, "gathered", lambda text: [text, json.dumps(theirs)])
    found = None
    try:
        assert restoring.together(True, tmp_path.relative_to(tmp_path) / "c", act) == 5
    except Exception as error:
        found = error
    assert (type(found), str(found)) == (type(raised), str(raised))


def test_a_full_disk_is_an_error_and_loses_nothing(saved):
    says = r"cannot write a checkpoint to .*; the last good one is of step 3"
    with pytest.raises(CheckpointError, match=says), files_end_at(1 << 16):
        save_and_wait(saved, 4, trees(4, n=20_000))
    again = Checkpoints(saved._directory, max_to_keep=2)
    assert_restored(again.restore_latest(trees(), pytest.fail), 3)
    again.close()


def test_a_reader_changes_nothing(saved):
    unfinished = saved._directory / "4.orbax-checkpoint-tmp"
    unfinished.mkdir()
    assert saved_steps(saved._directory) == [3, 2]
    assert_restored(read_checkpoint(saved._directory, 3, trees()), 3)
    assert unfinished.is_dir()


def test_checksums_see_values_shapes_and_dtypes():
    a = np.arange(6, dtype=np.float32)
    arrays = [a, a.reshape(2, 3), a.reshape(3, 2), a.view(np.int32), a[::-1], np.zeros(0)]
    sums = checksums({str(i): array for i, array in enumerate(arrays)})
    assert len(set(sums.values())) == len(arrays)
    assert checksums({"F": np.asfortranarray(a.reshape(2, 3))})["F"] == sums["1"]
