"""Bits per byte against the commands themselves, where the machine has them."""

import functools
import random
import shutil
import subprocess

import pytest

from training.evaluation.baselines import compressed_bits_per_byte

DATA = "".join(f"{i} squared is {i * i}.\n" for i in range(4000)).encode()


@functools.cache
def bits_per_byte():
    return compressed_bits_per_byte(DATA)


@pytest.mark.parametrize(
    ("name", "command", "tolerance"),
    [("gzip -9", ["gzip", "-9nc"], 0.01), ("bzip2 -9", ["bzip2", "-9c"], 0), ("xz -9e", ["xz", "-9ec"], 0.01)],
)
def test_the_commands_give_the_same_size(name, command, tolerance):
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not on the PATH")
    size = len(subprocess.run(command, input=DATA, capture_output=True, check=True).stdout)
    assert bits_per_byte()[name] * len(DATA) / 8 == pytest.approx(size, rel=tolerance)


def test_random_bytes_need_eight_bits():
    data = random.Random(0).randbytes(20_000)
    for bits in compressed_bits_per_byte(data).values():
        assert 8.0 <= bits < 8.2


def test_no_bytes_are_said():
    with pytest.raises(ValueError, match="there are no bytes to compress; expected the held-out text"):
        compressed_bits_per_byte(b"")
