"""What the compilers of TPUs and H100s make of a training step and of a decoding step, where they are installed."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import pytest

from training.benchmarks.accelerators import ENVIRONMENT
from training.benchmarks.accelerators.programs import kernels_in_loop, read, total

ROOT = pathlib.Path(__file__).resolve().parents[2]
SMALL = {"N_V": 4099, "l_max": 1024, "L": 2, "H": 4, "d_e": 256, "d_mlp": 1024}
COMMAND = f"""
import json
from tests.accelerator_steps import Case, columns, decoding_step, training_step
training, decoding = training_step(Case(DEVICE, 4, {SMALL})), decoding_step(Case(DEVICE, 8, {SMALL}), 512)
print(json.dumps({{"training": columns(training), "decoding": columns(decoding)}}))
"""
# device → what is counted (0: Mcycles, 1: GB), and its value in both programs
RECORDED = {
    "v5e:2x4": (0, {"training": 2.6850, "decoding": 0.13835}),
    "h100": (1, {"training": 1.5734, "decoding": 0.01598}),
}
COMPILERS = {"v5e:2x4": "libtpu", "h100": "jax_cuda12_plugin"}


def report_of(device, program):
    """What a program prints in a process of its own, where the compiler of the device is installed."""
    if importlib.util.find_spec(COMPILERS[device]) is None:
        pytest.skip(f"{COMPILERS[device]} is not installed: pip install -e .[{'tpu' if device != 'h100' else 'cuda'}]")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
    environment = inherited | ENVIRONMENT | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.compilers
@pytest.mark.parametrize("device", RECORDED)
def test_steps_have_their_kernel_and_cost_what_they_did(device):
    report = report_of(device, COMMAND.replace("DEVICE", repr(device)))
    column, recorded = RECORDED[device]
    for program, costs in report.items():
        assert costs[column] == pytest.approx(recorded[program], rel=0.1), program
    assert report["training"][2] == 2 * SMALL["L"]  # forward and backward of each layer


GPT2_124M = {"N_V": 50257, "l_max": 1024, "L": 12, "H": 12, "d_e": 768, "d_mlp": 3072}
TOKENS = f"""
import json
from tests.accelerator_steps import Case, kernels_of_a_token
print(json.dumps([kernels_of_a_token(Case("h100", B, {GPT2_124M}), 256) for B in (1, 16)]))
"""


@pytest.mark.compilers
def test_a_token_of_gpt2_takes_few_kernels():
    for greedy, drawn in report_of("h100", TOKENS):
        assert greedy < 150
        assert drawn < 210


HLO = """HloModule m, entry_computation_layout={(f32[8,4]{1,0})->f32[8,4]{1,0}}

%body (p: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {
  %p = (s32[], f32[8,4]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = f32[8,4]{1,0} get-tuple-element(%p), index=1
  %y = f32[8,4]{1,0} exponential(%x)
  ROOT %t = (s32[], f32[8,4]{1,0}) tuple(%i, %y)
}

%condition (p: (s32[], f32[8,4])) -> pred[] {
  %p = (s32[], f32[8,4]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %n = s32[] constant(3)
  ROOT %less = pred[] compare(%i, %n), direction=LT
}

ENTRY %main (x: f32[8,4]) -> f32[8,4] {
  %x = f32[8,4]{1,0} parameter(0)
  %zero = s32[] constant(0)
  %start = (s32[], f32[8,4]{1,0}) tuple(%zero, %x)
  %loop = (s32[], f32[8,4]{1,0}) while(%start), condition=%condition, body=%body
  ROOT %out = f32[8,4]{1,0} get-tuple-element(%loop), index=1
}
"""


def test_a_loop_counts_for_each_of_its_turns():
    report = read(HLO)
    assert total(report.sources) == [3, 3 * 2 * 8 * 4 * 4, 0]
    assert kernels_in_loop(HLO, depth=1) == (1, 1)
