"""scripts/train.py: every wrong input is one clear sentence and exit status 2, before any training."""

import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from training.loop.cost import with_unrolling

ROOT = Path(__file__).resolve().parents[2]
TEXT = "".join(f"The {n}th paragraph says that {n} and {n + 1} are {2 * n + 1}.\n\n" for n in range(400))
SIZES = {"l_max": 16, "L": 1, "H": 2, "d_e": 8, "d_mlp": 8}
TINY = {f"--{name}": size for name, size in SIZES.items()}
TINY |= {"--tokenizer": "bytes", "--batch-size": 4, "--steps": 3, "--eval-batches": 2, "--peak": 1e12}
TINY |= {"--optimizer": "adamw"}  # compiles faster than muon


pytestmark = pytest.mark.usefixtures("compile_once")


@pytest.fixture
def train(tmp_path, called):
    """Run the command line; return what `called` does."""

    def run(*arguments, flags=TINY, run="run"):
        own = {"--run": tmp_path / run} if run else {}
        given = [*itertools.chain(*flags.items(), *own.items()), "--cache", tmp_path / "cache", "--quiet"]
        task, rest = ([], arguments) if arguments[0] == "--run" else (arguments[:1], arguments[1:])
        return called("train", *task, *given, *rest)

    return run


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def assert_refused(result, *parts):
    status, out, err = result
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("train.py: ")
    for part in parts:
        assert part in err


def test_a_dry_run_says_what_an_update_costs_and_leaves_no_run(train, text, tmp_path):
    status, out, err = train("d", "--data", text, "--dry-run", "--dtype", "bfloat16")
    assert (status, err) == (0, "")
    assert not (tmp_path / "run").exists()
    for line in ("--dtype bfloat16", "--optimizer adamw", "--schedule linear", '--mesh ""', "--pairs (none)"):
        assert f"    {line}\n" in out
    V, l, d, mlp = 259, 16, 8, 8
    layer = 4 * (d * d + d) + 4 * d + mlp * d + mlp + d * mlp + d
    parameters = V * d + l * d + layer + 2 * d + (0 if "--tied\n" in out else V * d)
    assert f"parameters: {parameters:,}\n" in out
    products = 4 * l * 3 * 2 * (4 * d * d + 2 * d * mlp + V * d + 2 * l * d)  # batch, tokens, backward
    assert f"{products:.3g} FLOPs in matrix products, at 1e+12 FLOP/s" in out
    assert f"at least {products / 1e12:.3g} s an update and {3 * products / 1e12:.3g} s in all" in out
    assert re.search(r"memory: \d+ (MB|GB) on each device by the compiler; available: ", out)


def test_several_accelerators_share_the_work(train, text, monkeypatch, tmp_path):
    monkeypatch.setattr("training.commands.train.accelerators", lambda: 8)  # the tests have eight devices
    status, out, err = train("d", "--data", text, "--batch-size", "8", "--dry-run")
    assert (status, err) == (0, 'note: all 8 devices share the work: --mesh data=8 (--mesh "" uses one)\n')
    assert "    --mesh data=8\n" in out
    assert "devices: 8 × cpu (data=8)\n" in out
    status, out, err = train("d", "--data", text, "--dry-run")
    assert err.startswith("note: 7 of 8 devices are idle: for --mesh data=8, batch_size is 4")
    assert '    --mesh ""\n' in out


def test_a_cpu_is_several_devices_as_documented(text, tmp_path):
    words = ["scripts/train.py", "d", "--data", text, "--run", tmp_path / "run", "--mesh", "data=2", "--dry-run"]
    words += itertools.chain(*(TINY | {"--batch-size": 8}).items())
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": "2", "NPROC": "4", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert "devices: 2 × cpu (data=2)\n" in done.stdout


@pytest.mark.parametrize(("flags", "unrolled"), [([], True), (["--no-unroll"], False), (["--L", "49"], False)])
def test_on_a_gpu_a_long_run_unrolls_its_layers(flags, unrolled, train, text, monkeypatch):
    """The settings alone: nothing is compiled."""
    monkeypatch.setattr("training.commands.train.with_unrolling", lambda settings, _: with_unrolling(settings, "gpu"))
    monkeypatch.setattr("training.commands.train.described", lambda plan, *_: f"unroll {plan.settings.unroll}")
    status, out, err = train("d", "--data", text, "--dry-run", "--steps", "4000", *flags)
    assert (status, out) == (0, f"unroll {unrolled}\n")
    assert (err == "") is not unrolled
    assert ("for 4,000 updates on a GPU (4,000 or more of at most 48 layers): --no-unroll" in err) is unrolled


@pytest.mark.parametrize(
    ("module", "flags", "extra"), [("orbax.checkpoint", [], "train"), ("wandb", ["--wandb"], "wandb")]
)
def test_what_is_imported_later_is_missed_before_the_data_are_read(module, flags, extra, train, text, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delattr("training.commands.train.load_run_data")
    status, out, err = train("d", "--data", text, *flags)
    assert (status, out) == (2, "")
    package = module.partition(".")[0]
    assert re.fullmatch(rf"train.py: {package} is not installed: pip install .*\[{extra}\]'\n", err)


def test_a_run_from_the_command_line(train, text, tmp_path):
    status, out, err = train("d", "--data", text)
    assert (status, err) == (0, "")
    assert "bits per byte" in out
    assert "gzip -9" in out
    assert "a sample (Algorithm 14" in out
    record = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in record] == [1, 2, 3]
    assert list((tmp_path / "run" / "tensorboard").iterdir())
    settings = json.loads((tmp_path / "run" / "config.json").read_text())["settings"]
    assert (settings["data"], settings["batch_size"], settings["dtype"]) == ([str(text)], 4, "float32")  # on a CPU
    status, _, err = train("d", "--data", text)
    assert (status, err) == (0, "resuming after step 3\n")
    assert_refused(train("d", "--steps", "5", flags={}), "steps: 3, now 5")
    status, _, err = train("--run", tmp_path / "run", flags={}, run=None)  # alone
    assert (status, err) == (0, "resuming after step 3\n")
    text.write_text(TEXT + "More.\n")
    assert_refused(train("d", "--data", text), "began with another training data")


def test_the_machine_that_begins_a_run_decides_the_type(train, text, tmp_path, monkeypatch, called):
    run = tmp_path / "run"

    def stored():
        return json.loads((run / "config.json").read_text())["settings"]["dtype"]

    with monkeypatch.context() as on_gpu:
        on_gpu.setattr("training.commands.train.resolved", lambda dtype: {"auto": "bfloat16"}.get(dtype, dtype))
        assert train("d", "--data", text, "--steps", 2, "--schedule", "constant")[0] == 0
    assert stored() == "bfloat16"
    more = ("d", "--data", text, "--schedule", "constant")
    assert train(*more, "--dtype", "auto")[::2] == (0, "resuming after step 2\n")
    assert stored() == "bfloat16"  # as it began, on this CPU, too
    assert "began with other settings (--dtype: bfloat16, now float32)" in train(*more, "--dtype", "float32")[2]

    def evaluated(*flags):
        out = called("evaluate", run, "--cache", tmp_path / "cache", *flags)[1]
        kept = json.loads((run / "evaluation-validation.json").read_text())
        return re.search(r", computed in (\w+):\n", out)[1], kept["dtype"], kept["rows"]["this model"]["loss"]

    results = json.loads((run / "results.json").read_text())
    assert evaluated() == ("bfloat16", "bfloat16", pytest.approx(results["loss"], rel=1e-6))
    in_32 = evaluated("--dtype", "float32")
    assert in_32[:2] == ("float32", "float32")
    assert 0 < abs(in_32[2] - results["loss"]) < 0.05
    generate = ("generate", run, "--prompt", "The", "--l_gen", 2)
    assert called(*generate)[::2] == (0, "")  # on CPUs, the parameters' own type
    monkeypatch.setattr("training.command_line.arguments.resolved", lambda dtype: "bfloat16")
    assert called(*generate)[::2] == (0, "note: computes in bfloat16\n")
    assert called(*generate, "--dtype", "float32")[::2] == (0, "")


def test_a_file_of_settings(train, text, tmp_path):
    config = tmp_path / "settings.json"
    config.write_text(json.dumps({"data": [str(text)], "steps": 2, "L": 3}))
    status, _, _ = train("d", "--config", config)
    assert status == 0
    written = json.loads((tmp_path / "run" / "config.json").read_text())["settings"]
    assert (written["steps"], written["L"], written["data"]) == (3, 1, [str(text)])  # flags come first
    status, _, _ = train("d", "--config", tmp_path / "run" / "config.json", flags={}, run="again")
    assert json.loads((tmp_path / "again" / "config.json").read_text())["settings"] == written


def test_an_exploding_run_ends_with_status_1(train, text):
    flags = "--learning-rate 1e30 --clip-norm 0 --checkpoint-every 1"
    status, _, err = train("d", "--data", text, *flags.split())
    assert (status, err.count("\n")) == (1, 1)
    assert "train.py: step 2: the loss is " in err
    assert "the last good checkpoint is of step 1" in err
