"""Cases: every numbered line from the oracle, the reference equal to it, and files that say all of it."""

import dataclasses
import html
import json
import re
from importlib import metadata
from xml.etree import ElementTree

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

import algorithms
from algorithms.model.variants import VARIANTS
from tests.interchange_cases import libraries
from tests.mutations.located import parameters, recorded
from training import oracle
from training.commands.crosscheck import main
from training.foreign.cases import read_case
from training.foreign.catalogue import SLOTS
from training.foreign.checking import diagnose
from training.foreign.diagnose import ERRORS
from training.foreign.making import EDGES, make_case, of_library, oracle_lines, write_case
from training.foreign.reference import Reference, gradient
from training.interchange import load_pretrained
from training.oracle import family

torch, _ = libraries()

CASES = [(n, "PAPER") for n in (4, 5, 6, 7, 8, 9, 10)] + [(10, name) for name in VARIANTS if name != "PAPER"]
TINY = {"N_V": 7, "l_max": 6, "l_x": 3, "l_z": 2, "d_e": 4, "H": 1, "d_mlp": 3, "d_f": 4}


@pytest.mark.sampled(16)
@pytest.mark.parametrize(("algorithm", "variant"), CASES)
def test_reference_has_the_oracles_lines(algorithm, variant):
    case = make_case(algorithm, variant, seed=1)
    assert oracle_lines(case)  # which compares every line of the reference with the oracle's, to 1e-12


@pytest.mark.parametrize("edge", [edge for edge in EDGES if edge != "far positions"])
def test_edge_cases_have_the_oracles_lines(edge, tmp_path):
    case = make_case(edge=edge, seed=1)
    write_case(case, tmp_path)
    assert oracle_lines(read_case(tmp_path) if case.record is None else case)


@pytest.mark.parametrize(("edge", "variant"), [
    ("padding", "BERT"), ("several sequences", "LLAMA"), ("packed documents", "LLAMA"), ("far positions", "QWEN3"),
    ("window", "QWEN2"), ("tied", "LLAMA"), ("second head", "QWEN3_NEXT"),
    *(pytest.param("second head", name, marks=pytest.mark.thorough) for name in ("NANOCHAT", "GLM5", "ETTIN")),
    *(pytest.param("padding", name, marks=pytest.mark.thorough) for name in ("T5", "MODERNBERT")),
])  # fmt: skip
def test_edge_cases_of_variants_have_the_oracles_lines(edge, variant):
    case = make_case(edge=edge, variant=variant)
    assert oracle_lines(case)
    is_of_lines = edge in ("window", "tied", "second head")
    assert {"length", "z_length", "sequences", "positions"} & set(case.inputs) or is_of_lines


@pytest.mark.parametrize("algorithm", [8, 9])
def test_padding_that_is_not_masked_is_named(algorithm):
    case = make_case(algorithm, edge="padding")
    theta, given = parameters(algorithms, case), [case.inputs[n] for n in ("z", "x") if n in case.inputs]
    length = case.inputs.get("length", case.inputs.get("z_length"))
    real = (jnp.arange(len(given[0])) < length)[:, None]
    square, wide = (jnp.repeat(real, len(a), axis=1) for a in (given[0], given[-1]))
    masks = {"mask": square} if algorithm == 9 else {"z_mask": square, "cross_mask": wide}
    lengths = {"length" if algorithm == 9 else "z_length": jnp.asarray(length)}  # whose padding is token 0
    for options, texts in (masks, []), (lengths, []), ({}, ["padding is attended to"]):
        report = diagnose(case, recorded(algorithms, case, theta, options))
        assert list(dict.fromkeys(d.text for d in report.departures)) == texts, report


def test_a_mask_is_named_before_lines_that_are_right():
    """Cross-attention's keys are found behind it, from the encoder, where a trial has ended before."""
    case = make_case(8)
    strict = jnp.asarray(np.triu(np.ones((len(case.inputs["x"]),) * 2, bool), 1))
    report = diagnose(case, recorded(algorithms, case, parameters(algorithms, case), {"mask": strict}))
    (departure,) = report.departures
    assert departure.text.startswith("the mask is strict"), report


def test_a_wrong_reference_is_noticed():
    case = make_case(10)
    wrong = dataclasses.replace(case, base={**case.base, "softmax_axis": "queries"})
    with pytest.raises(ArithmeticError, match=r"l1/6:4.return: expected .* the oracle's value"):
        oracle_lines(wrong)


@pytest.mark.parametrize("algorithm", [pytest.param(8, marks=pytest.mark.thorough), 10])
def test_lines_that_a_trial_takes_over_are_as_in_a_whole_run(algorithm):
    case, taken_over = make_case(algorithm, **TINY), 0
    like = Reference(case).go()
    for slot, place in like.asked:
        for name in [] if slot == "θ" else list(SLOTS[slot])[1:2]:
            choices = {f"{slot}@{place}": name}
            try:
                whole = Reference(case, choices).go()
            except ERRORS:
                continue
            trial = Reference(case, choices, like=like, new=[(slot, place)]).go()
            assert list(trial.lines) == list(whole.lines)
            for visit, seen in whole.lines.items():
                np.testing.assert_array_equal(trial.lines[visit].value, seen.value, f"{choices}, {visit}")
            taken_over += trial.taken_over > 0
    assert taken_over > 50


@pytest.mark.parametrize(("algorithm", "edge"), [(8, ""), (9, ""), (10, ""), (10, "second head")])
def test_gradients_are_the_oracles(algorithm, edge):
    case = make_case(algorithm, edge=edge, **TINY)
    theta = oracle.unstack(of_library(case))
    x = case.inputs["x"]
    loss = {8: lambda theta: oracle.ed_loss(case.inputs["z"], x, theta), 10: lambda theta: oracle.d_loss(x, theta),
            9: lambda theta: oracle.e_loss(case.inputs["labels"], x, theta)}[algorithm]  # fmt: skip
    if edge:
        loss = lambda theta: oracle.d_loss(x, theta) + 0.3 * sum(family.mtp_losses(x, theta, algorithms.PAPER))  # noqa: E731
    assert np.isclose(float(np.real(Reference(case).go().loss("sum")[0])), float(loss(theta)), rtol=1e-12)
    mine, theirs = gradient(case, "sum"), oracle.flatten(oracle.complex_step_gradient(loss, theta))
    # the oracle's arrays are per head; both flat lists hold the same numbers
    a, b = (np.sort(np.concatenate([g.ravel() for g in of.values()])) for of in (mine, theirs))
    np.testing.assert_allclose(a, b, atol=1e-12)


def test_files_hold_the_case(tmp_path):
    case = make_case(10, "GPT2", seed=3)
    write_case(case, tmp_path)
    again = read_case(tmp_path)
    assert again.base == case.base
    assert again.inputs == case.inputs
    assert all(np.array_equal(again.theta[name], W) for name, W in case.theta.items())
    state, lines = json.loads((tmp_path / "case.json").read_text("utf-8")), load_file(tmp_path / "lines.safetensors")
    assert state["written_by"] == f"formal-algorithms {metadata.version('formal-algorithms')}"
    told = {entry["key"]: entry for entry in state["lines"]}
    assert set(told) == set(lines)
    scores = told["l2/6:4.4"]
    assert scores["formula"] == "S ← KᵀQ"
    assert scores["axes"] == ["H", "l_z", "l_x"]
    assert scores["shape"] == list(lines["l2/6:4.4"].shape) == [3, 7, 7]
    assert scores["from"] == "oracle"
    assert scores["tolerance"]["float64"] < scores["tolerance"]["float32"] < scores["tolerance"]["bfloat16"]
    assert "√(v + ε)" in told["l1/5:6.return"]["formula"]  # as GPT-2 has the line
    g, updated = load_file(tmp_path / "gradients.safetensors"), load_file(tmp_path / "updated.safetensors")
    for name, W in case.theta.items():
        np.testing.assert_allclose(updated[name], W - 0.1 * g[name], rtol=1e-15)


def test_sampled_tokens_are_the_first_above_the_draw():
    case = make_case(10)
    said = case.sampling
    x = list(said["x"])
    for draw, token in zip(said["draws"], said["y"], strict=True):
        longer = dataclasses.replace(case, inputs={"x": x})
        p = np.exp(Reference(longer).go().log_P[0, :, -1]) ** (1 / said["tau"])
        cumulated = np.cumsum(p / p.sum())
        assert token == int((cumulated <= draw).sum())
        x.append(token)


@pytest.mark.parametrize(("given", "message"), [
    ({"algorithm": 2}, "algorithm: expected one of 4, 5, 6, 7, 8"),
    ({"variant": "GPT5"}, "variant: expected one of PAPER"),
    ({"algorithm": 5, "variant": "LLAMA"}, "variant: expected PAPER for Algorithm 5"),
    ({"edge": "long"}, "edge: expected one of padding"), ({"edge": "far positions"}, "without learned positions"),
    ({"edge": "far positions", "algorithm": 8}, "edge: expected algorithm 9, 10 with 'far positions', got 8"),
])  # fmt: skip
def test_refused(given, message):
    with pytest.raises(ValueError, match=message):
        make_case(**given)


@pytest.mark.parametrize(("variant", "sizes"), [
    ("QWEN3", {"H_kv": 1}),  # the γ of its queries is differentiated in replicas that these do not have
    ("DEEPSEEK", {}),  # as are the rows of its queries and keys that are turned, and those that are not
])  # fmt: skip
def test_a_model_whose_rows_have_replicas_of_their_own_is_written(variant, sizes, tmp_path):
    case = make_case(10, variant, **TINY | sizes)
    write_case(case, tmp_path)
    assert set(load_file(tmp_path / "gradients.safetensors")) == set(case.theta)


@pytest.mark.end_to_end
def test_a_case_is_written_as_models_that_others_open(tmp_path, capsys):
    assert main(["--write-case", str(tmp_path), "--variant", "LLAMA"]) == 0
    transformers = pytest.importorskip("transformers")
    case = read_case(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "huggingface", dtype="float64")
    logits = model(torch.tensor([case.inputs["x"]])).logits[0].detach().log_softmax(-1)
    loss = -sum(float(logits[t, v]) for t, v in enumerate(case.inputs["x"][1:]))
    assert loss == pytest.approx(json.loads((tmp_path / "case.json").read_text("utf-8"))["loss"], rel=1e-5)
    theta, _, _ = load_pretrained(tmp_path / "model.gguf")
    assert np.array_equal(np.asarray(theta.W_e), case.theta["W_e"])


@pytest.mark.end_to_end
def test_a_report_is_written_as_data_and_as_tests(tmp_path, capsys):
    files = tmp_path / "report.json", tmp_path / "report.xml"
    of = "--algorithm", "4", "--of", "docs.examples.attention_numpy:observe"
    assert main([*of, "--json", str(files[0]), "--junit", str(files[1]), "--html", str(tmp_path / "page")]) == 1
    told = json.loads(files[0].read_text("utf-8"))
    assert [(d["algorithm"], d["line"]) for d in told["departures"]] == [(4, "return")]
    assert not told["ok"]
    suite = ElementTree.fromstring(files[1].read_text("utf-8"))
    assert (suite.get("tests"), suite.get("failures")) == ("6", "1")
    assert suite.find("testcase/failure").get("message").startswith("softmax is over the queries")
    page = (tmp_path / "page" / "index.html").read_text("utf-8")
    assert "softmax is over the queries" in page
    assert set(re.findall('href="#([^"]+)"', page)) <= set(re.findall(' id="([^"]+)"', page))
    assert all((tmp_path / "page" / name).is_file() for name in re.findall(r'href="([\w-]+\.html)', page))
    rows = {n: html.unescape(re.sub("<[^>]*>", "", row)) for row in page.split('<div class="row')[1:]
            for n in re.findall('href="#a4-paper-([^"]+)"', row)}  # fmt: skip
    texts = {"1": "q = x @", "2": "k = z @", "3": "v = z @", "4": "q @ k.T", "5": "-np.inf", "return": "weights.sum(0)"}
    assert set(rows) == set(texts)
    assert all(texts[n] in row for n, row in rows.items()), rows
