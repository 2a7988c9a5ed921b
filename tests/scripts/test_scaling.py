"""What the compilers make of an update on many accelerators: who has what, and what is moved."""

from importlib import metadata

import pytest

from algorithms import GPT2, DTransformerConfig, count_params, init_d_transformer
from tests.scripts.test_accelerators import report_of
from training.benchmarks.accelerators import compilers
from training.benchmarks.accelerators.programs import read
from training.commands import scaling
from training.tasks.flops import score_flops

SIZES = {"N_V": 1000, "l_max": 256, "L": 3, "H": 4, "d_e": 320, "d_mlp": 1152}
COMMAND = f"""
import json, math
import jax
from training.benchmarks.accelerators import programs
from training.commands.scaling import Case, compiled_step
case = Case("gpt2", CHIPS, MESH, 16)
compiled, n = compiled_step(case, case.settings({SIZES}))
module = programs.Module(compiled.as_text())
gathered = [i.shape for body in module.computations.values() for i in body.values() if i.op.startswith("all-gather")]
report = programs.of(compiled)
def share(a, place):  # what is not used has no place
    return math.prod(place.shard_shape(a.shape)) * a.dtype.itemsize if place else 0
given = jax.tree.leaves(jax.tree.map(share, compiled.args_info, compiled.input_shardings))
print(json.dumps([gathered, sum(given), programs.total(report.collectives)[1], report.groups]))
"""
# mesh → GB of collectives, on H100s and on v5e
RECORDED = {
    "data=8": {"h100:8": 0.03155, "v5e:2x4": 0.03356},
    "data=4,model=2": {"h100:8": 0.03467, "v5e:2x4": 0.03343},
}


@pytest.mark.compilers
@pytest.mark.parametrize("mesh", RECORDED)
@pytest.mark.parametrize("chips", ["h100:8", "v5e:2x4"])
def test_parameters_and_optimizer_state_are_divided_and_no_more_is_moved_than_was(chips, mesh):
    program = COMMAND.replace("CHIPS", repr(chips)).replace("MESH", repr(mesh))
    gathered, given, moved, _ = report_of(chips.removesuffix(":8"), program)
    config = DTransformerConfig(**SIZES, variant=GPT2)
    state = 3 * 4 * count_params(init_d_transformer, config)  # of Adam, in float32
    assert given < 1.1 * state / 8  # in memory a TPU's arrays are whole tiles
    if "model" in mesh:
        heads = SIZES["H"], SIZES["d_e"] // SIZES["H"], SIZES["d_e"]
        whole = [heads, (SIZES["d_mlp"], SIZES["d_e"]), (SIZES["d_e"], SIZES["d_e"]), (1024, SIZES["d_e"])]
        found = {tuple(sorted(dims(shape))) for shapes in gathered for shape in shapes.split("[")[1:]}
        assert found.isdisjoint(tuple(sorted(shape)) for shape in whole)
    assert moved / 1e9 == pytest.approx(RECORDED[mesh][chips], rel=0.1)


EXPERTS = """
import json
from training.benchmarks.accelerators import programs
from training.commands import scaling
scaling.MODELS["experts"] = {"N_V": 1024, "l_max": 256, "L": 2, "H": 2, "d_e": 256, "d_mlp": 512, "variant": "MIXTRAL"}
found = scaling.cost(scaling.Case("experts", "v5e:2x4", "data=4,model=2", 8))
cycles = programs.total(found.report.sources)[2] / scaling.CHIPS["v5e"].clock
print(json.dumps([found.report.custom_calls, found.kernels, found.arithmetic - cycles]))
"""


@pytest.mark.compilers
def test_experts_on_a_mesh_are_multiplied_by_kernels_whose_cost_is_added():
    kernels, seconds, added = report_of("v5e:2x4", EXPERTS)
    layers, tokens, products = 2, 8 * 256 / 8, 3 * 3  # products of each pass, and one forward and two backward passes
    runs = {name: kernels[name][0] for name in ("gmm", "tgmm")}
    assert runs == {"gmm": layers * 6, "tgmm": layers * 3}
    of_matrices = 2 * tokens * 2 * 256 * 512 * products * layers
    router = 2 * tokens * 8 * 256 * 3 * layers
    assert seconds == pytest.approx((of_matrices + router) / 197e12) == pytest.approx(added)


def test_half_of_the_pairs_of_tokens_count_in_one_of_the_two_utilizations():
    chip = scaling.Chip(peak=1000.0, bandwidth=1.0, links=1.0, network=1.0)
    found = scaling.Cost(1, 600.0, 200.0, 0.0, arithmetic=1.0, memory=0.5, collectives=1.0, report=None)
    assert found.mfu(chip) == (0.3, 0.6)
    assert found.mfu(chip, halved=True) == (0.25, 0.5)
    c = DTransformerConfig(N_V=7, l_max=8, L=3, H=2, d_e=8, d_mlp=5, d_attn=6, d_mid=10, variant=GPT2)
    assert score_flops(c, 3, 5, 8) == 3 * 2 * (2 * 5 * 8 * 6 + 2 * 5 * 8 * 10)


def test_a_missing_compiler_is_named(monkeypatch):
    def version(package):
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(ModuleNotFoundError, match="jax-cuda12-plugin is not installed: pip install 'jax"):
        compilers.h100(8)


def dims(shape):
    """The sizes of an array's axes but those of 1, from what follows its first bracket."""
    return [int(n) for n in shape.partition("]")[0].split(",") if n and n != "1"]


HLO = """HloModule m

ENTRY %main (x: f32[8,4]) -> f32[8,4] {
  %x = f32[8,4]{1,0} parameter(0)
  %a = f32[8,4]{1,0} all-reduce(%x), channel_id=1, replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add
  %b = f32[8,4]{1,0} all-reduce(%a), channel_id=2, replica_groups=[4,2]<=[2,4]T(1,0), to_apply=%add
  %c = f32[8,4]{1,0} all-reduce(%b), channel_id=3, replica_groups=mesh['x'=2,'y'=2,'z'=2] {'x','y'}, to_apply=%add
  %e = f32[8,4]{1,0} all-reduce(%c), channel_id=5, replica_groups=mesh['x'=4,'y'=2], device_ids=([2,4]T(1,0)) {'x'}
  ROOT %d = f32[8,4]{1,0} collective-permute(%c), channel_id=4, source_target_pairs={{0,2},{2,4},{4,6},{6,0}}
}
"""


def test_which_devices_take_part_in_a_collective():
    groups = read(HLO).groups
    assert {name: costs[:2] for name, costs in groups.items()} == {
        "all-reduce 2 5": [1, 128],
        "all-reduce 4 7": [1, 128],
        "all-reduce 4 4": [2, 256],
        "collective-permute 2 7": [1, 128],
    }
