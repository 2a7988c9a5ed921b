"""A model is read array by array: in another precision if asked, onto several devices part by part, and never twice."""

import subprocess
import sys

import jax
import numpy as np
import pytest

from tests.run_cases import make_run
from training.interchange import convert, load_model
from training.mesh.placement import Placement
from training.runs.named_arrays import flatten
from training.runs.trained_model import load_run

SIZES = {"H": 4, "d_e": 32, "d_mlp": 48, "dropout": 0.0}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "d", "d", **SIZES)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_a_model_is_kept_in_the_precision_that_was_asked_for(run, tmp_path, printed, dtype):
    stored = flatten(load_run(run).theta)
    expected = {name: np.asarray(array).astype(dtype) for name, array in stored.items()}
    found = [load_run(run, dtype=dtype), load_model(run, dtype=dtype)]
    convert(run, tmp_path / "out", to="gpt2")
    printed("convert", tmp_path / "out", tmp_path / "back", "--dtype", dtype)
    found.append(load_run(tmp_path / "back"))
    for model in found:
        for name, array in flatten(model.theta).items():
            assert (array.dtype, np.asarray(array).tobytes()) == (dtype, expected[name].tobytes())


def test_each_of_eight_devices_reads_its_part(run):
    whole = flatten(load_run(run).theta)
    theta = flatten(load_run(run, placement=Placement("data=2,model=4")).theta)
    of_device = dict.fromkeys(jax.devices()[:8], 0)
    for name, array in theta.items():
        np.testing.assert_array_equal(array, whole[name])
        for shard in array.addressable_shards:
            of_device[shard.device] += shard.data.nbytes
    total = sum(array.nbytes for array in whole.values())
    assert max(of_device.values()) < 0.25 * total
    assert {shard.data.shape for shard in theta["layers.mlp.W_mlp1"].addressable_shards} == {(2, 12, 16)}


@pytest.mark.thorough
def test_a_divided_model_says_the_same(run, called, printed):
    texts = set()
    for mesh in ([], ["--mesh", "data=2,model=4"], ["--mesh", "model=8", "--weights", "int8"]):
        texts.add(printed("generate", run, "--prompt", "abc", "--prompt", "b", "--tau", 0, "--l_gen", 8, *mesh))
    assert len(texts) == 1
    status, _, err = called("generate", run, "--prompt", "abc", "--mesh", "model=3")
    assert (status, "the mesh model=3 is for 3 devices, but there are 8" in err) == (2, True)


PEAK = """
import resource, sys
import jax
from training.generation import Generator
from training.runs.trained_model import load_run
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
jax.numpy.zeros(3).block_until_ready()
before = peak()
run = load_run(sys.argv[1], dtype=sys.argv[2] or None)
jax.block_until_ready(run.theta)
read = peak()
generator = Generator(run.theta, run.config)
jax.block_until_ready(generator.weights)
print(read - before, peak() - before)
"""


@pytest.mark.end_to_end
@pytest.mark.parametrize("dtype", [pytest.param("", marks=pytest.mark.thorough), "bfloat16"])
def test_a_model_is_never_in_memory_twice(tmp_path, dtype):
    """Reading takes the model and a few rows of an array, here a sixth of it; generating, W_q, W_k and W_v besides."""
    run = make_run(tmp_path / "d", "d", H=8, d_e=512, d_mlp=2048, L=12, l_max=40)
    nbytes = (run / "parameters.safetensors").stat().st_size
    assert nbytes > 140e6
    done = subprocess.run([sys.executable, "-c", PEAK, str(run), dtype], check=True, capture_output=True, text=True)
    reading, generating = map(int, done.stdout.split())
    held = nbytes / 2 if dtype else nbytes
    assert reading < held + 20e6
    assert generating < 1.25 * held + 30e6
