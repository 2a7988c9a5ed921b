"""lm-evaluation-harness with a task of our own: its figures are those that Algorithm 10 gives."""

import functools
import importlib
import json
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tokenizers import processors

from algorithms import d_transformer
from tests.run_cases import LETTERS, conversing, make_run
from training import generation, interchange
from training.data.tokenizers import LibraryTokenizer
from training.generation.prompts import window_start
from training.runs.trained_model import load_run

lm_eval = pytest.importorskip("lm_eval", reason="the extra lm-eval is not installed")
harness = importlib.import_module("training.evaluation.harness")
instance = importlib.import_module("lm_eval.api.instance")

DOCUMENTATION = pathlib.Path(__file__).resolve().parents[3] / "docs" / "generation.md"
CONTEXTS = ["a bad", "face", "b. ", ""]
ENDS = [" cab", "d", "dig", "hide"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return load_run(make_run(tmp_path_factory.mktemp("run") / "d", "d"))


def table_of(run, tokens):
    """[N_V, l], by the algorithm itself."""
    return np.log(np.asarray(d_transformer(jnp.asarray(tokens), run.theta)))


def by_hand(run, context, end):
    """A space between both belongs to the end, as it does in the harness."""
    context, end = (context[:-1], f" {end}") if context.endswith(" ") else (context, end)
    tokens = [LETTERS.bos_token, *LETTERS.encode(context), *LETTERS.encode(end)][-run.config.l_max - 1 :]
    table, n = table_of(run, tokens[:-1]), len(LETTERS.encode(end))
    places = range(len(tokens) - 1 - n, len(tokens) - 1)
    return sum(table[tokens[t + 1], t] for t in places), all(table[:, t].argmax() == tokens[t + 1] for t in places)


def asked(kind, *arguments):
    made = functools.partial(instance.Instance, request_type=kind, doc={})
    return [made(arguments=one, idx=i, metadata=("task", i, 1)) for i, one in enumerate(arguments)]


def test_likelihoods_are_those_of_the_model(run):
    prompt = np.array([[LETTERS.bos_token, *LETTERS.encode("abc")]])
    how = {"lengths": np.array([4]), "l_gen": 1, "tau": 0.0, "key": jax.random.key(0)}
    likeliest = LETTERS.decode(generation.generate(run.theta, prompt, config=run.config, **how)[0].tolist())
    pairs = [*zip(CONTEXTS, ENDS, strict=True), ("abcdefg" * 8, "hij"), ("abc", likeliest)]
    found = harness.HarnessModel(run, batch_size=4).loglikelihood(asked("loglikelihood", *pairs))
    expected = [by_hand(run, *pair) for pair in pairs]
    np.testing.assert_allclose([log_p for log_p, _ in found], [log_p for log_p, _ in expected], rtol=1e-5)
    assert [is_greedy for _, is_greedy in found] == [is_greedy for _, is_greedy in expected]
    assert found[-1][1]


def test_a_long_text_is_rolled_through_windows(run):
    text = "abcd efgh. ij" * 9
    (found,) = harness.HarnessModel(run).loglikelihood_rolling(asked("loglikelihood_rolling", (text,)))
    tokens, l_max = [LETTERS.bos_token] * 2 + LETTERS.encode(text), run.config.l_max  # HFLM's bos, and the tokenizer's
    expected, done = 0.0, 1
    while done < len(tokens):  # windows that read l_max tokens, ending with the one before
        new = min(l_max, len(tokens) - done)
        first = max(0, done + new - 1 - l_max)
        table = table_of(run, tokens[first : done + new - 1])
        expected += sum(table[tokens[t], t - 1 - first] for t in range(done, done + new))
        done += new
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert window_start(len(tokens), l_max) > 0


def test_texts_end_before_what_ends_them(run):
    model = harness.HarnessModel(run)
    both = ("abc", {"max_gen_toks": 12}), ("abc", {"until": ["d"], "max_gen_toks": 12})
    free, stopped = model.generate_until(asked("generate_until", *both))
    assert stopped == free.split("d")[0]
    assert 0 < len(stopped) < len(free)
    assert model.generate_until(asked("generate_until", ("abc", {"until": ["", "d"], "max_gen_toks": 12}))) == [stopped]
    with pytest.raises(ValueError, match=r"the task's options: expected do_sample, max_gen_toks, .*, got num_beams"):
        model.generate_until(asked("generate_until", ("abc", {"num_beams": 2})))


@pytest.mark.end_to_end
def test_the_documented_way_on_a_task_of_our_own(tmp_path, monkeypatch):
    """Which of four ends follows each context: the accuracy is that of the likelihoods by hand."""
    run = load_run(make_run(tmp_path / "runs" / "gpt2", "d"))
    documents = [{"context": c, "ends": ENDS, "label": i} for i, c in enumerate(CONTEXTS[:3])]
    (tmp_path / "ends.jsonl").write_text("".join(json.dumps(document) + "\n" for document in documents))
    files = {"data_files": {"test": str(tmp_path / "ends.jsonl")}, "cache_dir": str(tmp_path / "cache")}
    task = {"task": "ends", "dataset_path": "json", "dataset_kwargs": files, "test_split": "test"}
    task |= {"output_type": "multiple_choice", "doc_to_text": "{{context}}", "doc_to_choice": "{{ends}}"}
    task |= {"doc_to_target": "label", "target_delimiter": "", "metric_list": [{"metric": "acc"}]}
    (code,) = re.findall(r"```python\n(from lm_eval .*?)```", DOCUMENTATION.read_text("utf-8"), re.DOTALL)
    assert '"lambada_openai"' in code
    monkeypatch.chdir(tmp_path)
    names = {"task": task}
    exec(code.replace('"lambada_openai"', "task"), names)
    correct = [np.argmax([by_hand(run, c, end)[0] for end in ENDS]) == i for i, c in enumerate(CONTEXTS[:3])]
    assert names["results"]["results"]["ends"]["acc,none"] == np.mean(correct)


def test_only_a_decoder_is_taken(tmp_path):
    with pytest.raises(ValueError, match="the run is of the task ed; the harness needs a decoder"):
        harness.HarnessModel(load_run(make_run(tmp_path / "ed", "ed")))


@pytest.mark.end_to_end
@pytest.mark.parametrize("begins", [False, True])
def test_everything_equals_the_harness_own_model_of_transformers(tmp_path, begins):
    """For tokenizers that add no bos, like those of GPT-2 and Qwen, and for those that do."""
    hflm = pytest.importorskip("lm_eval.models.huggingface").HFLM
    made = conversing()
    bos = made.bos_token
    if begins:
        frame = {"single": "<s> $A", "special_tokens": [("<s>", bos)]}
        made.inner.post_processor = processors.TemplateProcessing(**frame)
    tokenizer = LibraryTokenizer(made.inner, special=made.special._replace(before=(bos,) if begins else ()))
    run = load_run(make_run(tmp_path / "run", "d", tokenizer, variant="LLAMA", l_max=32))
    interchange.save_pretrained(tmp_path / "hf", run.theta, run.config, run.tokenizer)
    theirs = hflm(pretrained=str(tmp_path / "hf"), device="cpu", dtype="float32", batch_size=2)
    ours = harness.HarnessModel(run, batch_size=2)
    pairs = [("the cat", " sat on the mat"), ("the rat ", "sat"), ("", "the mat"), ("the rat sat " * 20, "on the mat")]
    found, expected = (model.loglikelihood(asked("loglikelihood", *pairs)) for model in (ours, theirs))
    np.testing.assert_allclose(*([log_p for log_p, _ in one] for one in (found, expected)), rtol=1e-4)
    assert [is_greedy for _, is_greedy in found] == [is_greedy for _, is_greedy in expected]
    texts = [("the cat sat on the mat. " * 9,), ("a rat",)]
    rolled = (model.loglikelihood_rolling(asked("loglikelihood_rolling", *texts)) for model in (ours, theirs))
    np.testing.assert_allclose(*rolled, rtol=1e-4)
    how = {"until": ["x"], "max_gen_toks": 9, "do_sample": False}
    contexts = [("the cat", how), ("the rat sat " * 20, how), ("on the ", how)]
    generated = [model.generate_until(asked("generate_until", *contexts)) for model in (ours, theirs)]
    assert generated[0] == generated[1]
