"""The loss of conversations is over the answers and their end tokens, counted by hand for each kind of template."""

import json

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from training.data.conversations import Answers
from training.data.records import Document
from training.data.special_tokens import SpecialTokens
from training.data.tokenizers import LibraryTokenizer

# The ways in which published templates end an answer, in our words.
OTHER_LAST = """{{ '<|start|>system<|message|>be brief<|end|>' }}{% for m in messages %}
{%- if m.role == 'user' %}{{ '<|start|>user<|message|>' + m.content + '<|end|>' }}
{%- elif m.tool_calls %}{{ '<|start|>assistant to tool<|channel|>call<|message|>' + m.tool_calls[0] + '<|call|>' }}
{%- elif m.role == 'tool' %}{{ '<|start|>tool<|message|>' + m.content + '<|end|>' }}
{%- else %}{{ '<|start|>assistant<|channel|>final<|message|>' + m.content }}
{{- '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"""
NEXT_MARKER = """{{ '<sop>' }}{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"""
ONLY_LAST = """{% for m in messages %}{{ '<|' + m.role + '|>' + m.content }}
{%- if loop.last and m.role == 'assistant' %}{{ '<|return|>' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"""
ALSO_LAST = """{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + '<|end|>\n' }}{% endfor %}
{{- '<|assistant|>' if add_generation_prompt else '<|return|>' }}"""
BLOCK_WITHOUT_END = """{% for m in messages %}{{ '<|start|>' + m.role + '\n' }}
{%- if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}
{{- '<|end|>\n' }}{% endfor %}"""
BLOCK_AND_MARKER = """{% for m in messages %}{{ '<|' + m.role + '|>' }}
{%- if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}
{%- endfor %}"""
CALLS = """{% for m in messages %}{{ '<|start|>' + m.role + '\n' + (m.content or '') }}
{%- if m.tool_calls %}{{ '<call>' + m.tool_calls[0] + '</call>' }}{% endif %}{{ '<|end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant\n' }}{% endif %}"""
CONTROLS = (
    "<s>", "<sop>", "<|start|>", "<|message|>", "<|channel|>", "<call>", "</call>", "<|call|>", "<|end|>", "<|return|>",
    "<|user|>", "<|assistant|>",
)  # fmt: skip
WORDS = ("system", "user", "assistant", "to", "tool", "final", "call", "be", "brief", "question", "a", "s", "end", "t")


def marked(template, ends, messages):
    """The words and tokens of an encoded conversation that the loss is over."""
    vocabulary = {word: i for i, word in enumerate([*WORDS, "?"])}
    inner = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.add_special_tokens([*CONTROLS])
    ids = {name: inner.token_to_id(name) for name in CONTROLS}
    eos, *others = (ids[end] for end in ends)
    special = SpecialTokens(inner.get_vocab_size(), bos=ids["<s>"], eos=eos, ends=tuple(others))
    tokenizer = LibraryTokenizer(inner, special=special, chat_template=template)
    tokens, answered = Answers(tokenizer).encode(Document(json.dumps({"messages": messages})))
    return [inner.id_to_token(i) for i, is_answer in zip(tokens, answered, strict=True) if is_answer]


def turns(n, answer="a s end"):
    """Contents whose words are also in headers or in names of control tokens."""
    return [{"role": role, "content": text} for role, text in [("user", "end s"), ("assistant", answer)] * n]


FINAL = ["<|channel|>", "final", "<|message|>", "a", "s", "end"]
PLAIN = ["a", "s", "end"]
KINDS = {  # template, end tokens of the model, each answer but the last, the last
    "another end last": (OTHER_LAST, ("<|return|>", "<|call|>"), [*FINAL, "<|end|>"], [*FINAL, "<|return|>"]),
    "the next marker": (NEXT_MARKER, ("<|return|>", "<|user|>"), [*PLAIN, "<|user|>"], [*PLAIN, "<|user|>"]),
    "no end but the last": (ONLY_LAST, ("<|return|>",), PLAIN, [*PLAIN, "<|return|>"]),
    "two ends last": (ALSO_LAST, ("<|return|>",), [*PLAIN, "<|end|>"], [*PLAIN, "<|end|>", "<|return|>"]),
    "a block without": (BLOCK_WITHOUT_END, ("<|end|>",), [*PLAIN, "<|end|>"], [*PLAIN, "<|end|>"]),
    "a block, other eos": (BLOCK_WITHOUT_END, ("<|return|>",), [*PLAIN, "<|end|>"], [*PLAIN, "<|end|>"]),
    "a block, next marker": (BLOCK_AND_MARKER, ("<|return|>", "<|user|>"), *[[*PLAIN, "<|user|>"]] * 2),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_over_each_answer_and_its_end(kind):
    template, ends, each, last = KINDS[kind]
    for n in (1, 2, 4):
        assert marked(template, ends, turns(n)) == each * (n - 1) + last


@pytest.mark.parametrize(
    ("template", "ends", "call"),
    [
        (OTHER_LAST, ("<|return|>", "<|call|>"), "to tool <|channel|> call <|message|> t <|call|>"),
        (CALLS, ("<|end|>",), "<call> t </call> <|end|>"),
        (CALLS, ("<|return|>",), "<call> t </call> <|end|>"),
    ],
)
def test_a_call_of_a_tool_is_an_answer_to_its_end(template, ends, call):
    calling = [
        {"role": "user", "content": "question"},
        {"role": "assistant", "content": None, "tool_calls": ["t"]},
        {"role": "tool", "content": "s"},
        {"role": "assistant", "content": "a s end"},
    ]
    last = KINDS["another end last"][3] if template == OTHER_LAST else [*PLAIN, "<|end|>"]
    assert marked(template, ends, calling) == [*call.split(), *last]


def test_an_end_that_only_the_next_message_would_write_is_not_written_after_a_call():
    call = [{"role": "user", "content": "question"}, {"role": "assistant", "content": "a", "tool_calls": ["t"]}]
    assert marked(NEXT_MARKER, ("<|user|>",), call) == ["a"]
