"""Conversations as data: tokens as transformers has them, loss on the answers alone, and what is refused."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from algorithms import d_transformer
from tests import interchange_cases
from tests.training.data.test_chat import CHATML, INST, MARKED
from tests.training_cases import batched
from training.data.batches import NextTokens
from training.data.conversations import Answers
from training.data.files import read_corpus
from training.data.loading import load_run_data
from training.data.records import DataError, Document
from training.data.special_tokens import SpecialTokens
from training.data.token_store import tokenize
from training.data.tokenizers import LibraryTokenizer
from training.tasks import TASKS, settings_from
from training.tasks.models import init_model, model_config

WORDS = ["café", "naïve", "日本", "one", "two", "three", "the", "is", "was", "number", "then", "of", "question"]


def tokenizer_of(template):
    """Bytes, with merges, and special tokens after them."""
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, show_progress=False, initial_alphabet=alphabet)
    inner.train_from_iterator([" ".join(WORDS)] * 3, trainer)
    inner.add_special_tokens(["<s>", "</s>", "<|im_start|>", "<|im_end|>"])
    size = inner.get_vocab_size()
    special = SpecialTokens(size, bos=size - 4, eos=size - 3, ends=(size - 1,))
    return LibraryTokenizer(inner, special=special, chat_template=template)


def conversations(n=24):
    rng = np.random.default_rng(0)

    def said(least, most):
        return " ".join(rng.choice(WORDS, rng.integers(least, most)))

    found = []
    for i in range(n):
        turns = [("user", f"question {i} {said(1, 5)}"), ("assistant", said(1, 6))]
        turns += [("user", said(1, 5)), ("assistant", said(1, 4))] if i % 3 == 0 else []
        found.append([{"role": role, "content": content} for role, content in turns])
    return found


def written(path, lines):
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), "utf-8")
    return path


@pytest.fixture
def chats(tmp_path):
    return written(tmp_path / "chats.jsonl", [{"messages": messages, "id": 7} for messages in conversations()])


@pytest.fixture(scope="module")
def theirs():
    """How transformers tokenizes conversations, and marks what the assistant says."""
    _, transformers = interchange_cases.libraries()

    def encode(tokenizer, messages):
        inner = tokenizers.Tokenizer.from_str(tokenizer.inner.to_str())
        fast = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>")
        options = {"chat_template": tokenizer.chat_template, "return_dict": True, "return_assistant_tokens_mask": True}
        found = fast.apply_chat_template(messages, **options)
        return found["input_ids"], found["assistant_masks"]

    return encode


def test_tokens_and_answers_are_those_of_transformers(theirs):
    """Of a template that marks its answers, which is the only one of which transformers knows them."""
    tokenizer = tokenizer_of(MARKED)
    answers = Answers(tokenizer)
    for messages in conversations():
        tokens, answered = answers.encode(Document(json.dumps({"messages": messages})))
        expected, mask = theirs(tokenizer, messages)
        assert (tokens, answered.tolist()) == (expected, [bool(m) for m in mask])


@pytest.mark.thorough
@pytest.mark.parametrize("template", [CHATML, INST])
def test_the_loss_is_over_the_answers_alone(chats, tmp_path, template):
    """Against Algorithm 10 on each conversation by itself, with −ln P of the tokens of the answers summed by hand."""
    tokenizer = tokenizer_of(template)
    values = {"data": [str(chats)], "variant": "LLAMA", "H": 2, "d_e": 8, "d_mlp": 12, "L": 1, "l_max": 90}
    settings = settings_from({**values, "batch_size": 3, "dropout": 0.0}, task="d")
    data = load_run_data(settings, tokenizer=tokenizer, cache_dir=tmp_path / "cache")
    assert data.corpus.kind == "conversations"
    config = model_config(settings, tokenizer.N_V)
    theta = init_model(jax.random.key(0), "d", config, scheme="glorot")
    objective = TASKS["d"].objective
    nats = weight = 0.0
    for batch in data.train.evaluation_batches():
        totals = objective.totals(theta, {k: jnp.asarray(v) for k, v in batch.items()})
        nats, weight = nats + float(totals.nats), weight + float(totals.weight)
    expected, count = 0.0, 0
    ours = [json.loads(record.text)["messages"] for record in data.corpus.train]
    for messages in conversations():
        if messages not in ours:
            continue
        tokens, answered = Answers(tokenizer).encode(Document(json.dumps({"messages": messages})))
        padded = jnp.zeros(90, int).at[: len(tokens)].set(jnp.asarray(tokens))  # one program for all
        P = np.asarray(d_transformer(padded, theta), np.float64)
        for t in range(1, len(tokens)):
            if answered[t]:
                expected, count = expected - np.log(P[tokens[t], t - 1]), count + 1
    assert weight == count > 100
    assert nats == pytest.approx(expected, rel=2e-5)


def test_each_conversation_is_whole_in_one_row(chats, tmp_path):
    corpus = read_corpus([chats], "text")
    store = tokenize(corpus, tokenizer_of(CHATML), cache_dir=tmp_path / "cache").train
    l_max = int(np.median(store.lengths))
    data = batched(NextTokens, store, l_max=l_max, batch_size=2, mode="packed")
    fitting = [store[i].tolist() for i in range(len(store)) if len(store[i]) <= l_max]
    assert data.source.n_too_long == len(store) - len(fitting) > 0
    found = []
    for batch in data.evaluation_batches():
        for x, ids in zip(batch["x"], batch["segment_ids"], strict=True):
            for s in range(1, ids.max() + 1):
                found.append(x[ids == s].tolist())
    assert sorted(found) == sorted(fitting)
    assert data.tokens_per_byte is None
    with pytest.raises(DataError, match="--rows: expected packed for conversations, got windows; leave it out"):
        NextTokens(store, l_max=l_max, mode="windows")
    shortest = int(store.lengths.min())
    with pytest.raises(DataError, match=rf"none of the {len(store)} train conversations fits .* needs {shortest}"):
        NextTokens(store, l_max=shortest - 1, mode="packed")


def test_conversations_are_the_same_only_as_a_whole(tmp_path):
    """Not by their first question, or but for the system message."""
    answers = [[*conversations(1)[0][:1], {"role": "assistant", "content": str(n)}] for n in range(50)]
    systems = [[{"role": "system", "content": f"Be {n}."}, *conversations(1)[0]] for n in range(40)]
    chats = written(tmp_path / "chats.jsonl", [{"messages": m} for m in [*answers, *systems]])
    held = written(tmp_path / "held.jsonl", [{"messages": m} for m in [*answers[:2], answers[3][:1] + systems[0][-1:]]])
    corpus = read_corpus([chats], "text", validation_paths=[held])
    assert [json.loads(r.text)["messages"] for r in corpus.train] == [answers[2], *answers[3:], *systems]
    assert len([*corpus.validation]) == 3
    corpus = read_corpus([chats], "text")
    assert (len([*corpus.train]), len([*corpus.validation])) == (86, 4)  # a twentieth of 90, rounded


def test_conversations_without_a_last_answer_are_left_out_and_counted(tmp_path):
    """By loading them as a run does, whose notes say so."""
    lines = [{"messages": messages} for messages in conversations()]
    ends = "the assistant does not speak last"
    for more in ([USER], [USER, ANSWER, USER], [SYSTEM, USER]):
        lines.insert(1, {"messages": more})
    lines[7:7] = [{"messages": []}, {"messages": None}, {"messages": [USER, {**ANSWER, "content": " "}]}]
    path = written(tmp_path / "chats.jsonl", lines)
    settings = settings_from({"data": [str(path)], "l_max": 90, "batch_size": 2}, task="d")
    for _ in range(2):  # also when the tokens are cached
        data = load_run_data(settings, tokenizer=tokenizer_of(CHATML), cache_dir=tmp_path / "cache")
        assert len(data.stores.train) + len(data.stores.validation) == 24
        assert data.notes[1:4] == (
            f"3 of 30 records are left out: {ends}, as in {path}:2",
            f"2 of 30 records are left out: there are no messages, as in {path}:8",
            f"1 of 30 records is left out: an answer is empty, as in {path}:10",
        )


USER, ANSWER = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
SYSTEM, TOOL = {"role": "system", "content": "s"}, {"role": "tool", "content": "t"}
BAD = [
    ({"messages": [ANSWER, USER]}, "message 1: role: expected user at first, got assistant"),
    ({"messages": [USER, USER, ANSWER]}, "message 2: role: expected assistant after user, got user"),
    ({"messages": [USER, ANSWER, ANSWER]}, "message 3: role: expected user or tool after assistant, got assistant"),
    ({"messages": [USER, TOOL, ANSWER]}, "message 2: role: expected assistant after user, got tool"),
    ({"messages": [USER, SYSTEM, ANSWER]}, "message 2: role: expected system to come first, got it after other"),
    ({"messages": [USER, {"role": "assistant"}]}, "message 2: content: expected a text, got nothing"),
    ({"messages": [{**USER, "content": "\ud800"}, ANSWER]}, "a message has a lone surrogate"),
    ({"messages": {"role": "user"}}, 'expected an object {"messages": [{"role": "…", "content": "…"}, …]}, got'),
    ({"text": "no conversation"}, 'expected an object {"messages": [{"role": "…", "content": "…"}, …]}, got {"text"'),
]


@pytest.mark.parametrize(("line", "message"), BAD)
def test_what_is_not_a_conversation_is_said_with_its_line(tmp_path, line, message):
    good = [{"messages": messages} for messages in conversations(2)]
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in [*good, line]))
    with pytest.raises(DataError) as error:
        list(read_corpus([path], "text").train)
    assert f"{path}:3: " in str(error.value)
    assert message in str(error.value)


def test_what_the_template_refuses_is_said_with_its_line(tmp_path):
    calling = {"role": "assistant", "content": None, "tool_calls": [{"type": "function"}]}
    every = [*conversations(), [USER, calling, TOOL, ANSWER]]
    path = written(tmp_path / "chats.jsonl", [{"messages": messages} for messages in every])
    with pytest.raises(DataError, match=rf"{path}:25: the chat template refuses the conversation"):
        tokenize(read_corpus([path], "text"), tokenizer_of(INST), cache_dir=tmp_path / "cache")


def test_what_conversations_cannot_be_used_for_is_said(chats, tmp_path):
    def refused(task="d", tokenizer=None, **values):
        settings = settings_from({"data": [str(chats)], **values}, task=task)
        with pytest.raises(DataError) as error:
            load_run_data(settings, tokenizer=tokenizer, cache_dir=tmp_path / "cache")
        return str(error.value)

    no_template = "--data: expected text, as the model has no chat template, got conversations; continue --from an "
    assert no_template in refused()
    assert no_template in refused(tokenizer=tokenizer_of(None))
    assert "--data: expected text for e, got conversations; train d on them" in refused(task="e")
    text = tmp_path / "text.txt"
    text.write_text("a text\n" * 50)
    message = refused(data=[str(chats), str(text)], tokenizer=tokenizer_of(CHATML))
    assert f'{text}:1: expected {{"messages": […]}}, as in the other data, got none; give one kind of data' in message
