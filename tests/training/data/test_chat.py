"""Conversations become text as in transformers, string by string, and no template does harm."""

import functools
import importlib
import subprocess

import pytest

from tests import interchange_cases
from tests.run_cases import conversing
from training.data import chat
from training.data.answers import render_with_answers
from training.data.chat import ChatTemplate, ends_of_turn
from training.data.records import DataError
from training.data.tokenizers import ByteTokenizer, LibraryTokenizer, load_tokenizer

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
# The kinds that published models have, in our words.
CHATML = """{% for message in messages %}
    {% if loop.first and message['role'] != 'system' %}
{{ '<|im_start|>system\nBe brief.<|im_end|>\n' }}
    {% endif %}
{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}
{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
INST = """{%- if messages[0].role == 'system' -%}
    {%- set system = '<<SYS>>\n' ~ messages[0].content ~ '\n<</SYS>>\n\n' %}{% set rest = messages[1:] -%}
{%- else %}{% set system = '' %}{% set rest = messages %}{% endif -%}
{%- for message in rest -%}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}
        {{- raise_exception('roles must alternate user/assistant/user/assistant/…') -}}
    {%- endif -%}
    {%- if message.role == 'user' -%}
        {{ bos_token + '[INST] ' + (system if loop.first else '') + message.content.strip() + ' [/INST]' }}
    {%- else %}{{ ' ' + message['content'] | trim + ' ' + eos_token }}{% endif -%}
{%- endfor -%}"""
HEADERS = """{{ bos_token }}{%- set ns = namespace(day="") -%}
{%- if date is defined %}{% set ns.day = date %}{% else %}{% set ns.day = strftime_now("%d %b %Y") %}{% endif -%}
{{- "<|head|>system<|/head|>\n\nToday: " + ns.day + "\n" -}}
{%- if tools %}
    {%- for tool in tools %}{{ tool | tojson(indent=2) }}{% if not loop.last %}, {% endif %}{% endfor %}
{%- endif -%}
{%- for message in messages %}
    {%- if message.content is none %}{% continue %}{% endif -%}
    {{- "<|head|>" + message.role + "<|/head|>\n\n" + message.content | trim + "<|eot|>" }}
{%- endfor -%}
{%- if add_generation_prompt %}{{- "<|head|>assistant<|/head|>\n\n" }}{%- endif -%}"""
TURNS = """{{ bos_token }}
{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{% for message in messages %}
    {% if message['role'] == 'assistant' %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}
{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}
{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"""
MARKED = """{% for m in messages %}{{ m.role }}: {% if m.role == 'assistant' %}
{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}{% else %}{{ m.content }}{% endif %};
{% endfor %}"""
LAST_THINKS = """{% for m in messages %}{{ '[' + m.role + ']' }}
{%- if m.role == 'assistant' and loop.last %}{{ '<think></think>' }}{% endif %}{{ m.content }}{{ '</s>' }}{% endfor %}
{%- if add_generation_prompt %}{{ '[assistant]' }}{% endif %}"""
TEMPLATES = {"chatml": CHATML, "inst": INST, "headers": HEADERS, "turns": TURNS}
TEMPLATES |= {"marked": MARKED, "thinks": LAST_THINKS}


def said(*contents, system=None):
    """A conversation, the user first."""
    messages = [{"role": ("user", "assistant")[i % 2], "content": c} for i, c in enumerate(contents)]
    return [{"role": "system", "content": system}] * (system is not None) + messages


CONVERSATIONS = {
    "one": said("What is 2 × 3?"),
    "three": said("Hi", "Hello! <b>&amp;'\"", "  spaces  \n\n"),
    "system": said("日本語 😀", " ok\n", "{{ 7 * 7 }} {% raw %}", system="You answer in verse."),
    "two": said("Hi", "Hello"),
}


@pytest.fixture(scope="module")
def theirs():
    """How transformers renders a template."""
    interchange_cases.libraries()
    utilities = importlib.import_module("transformers.utils.chat_template_utils")

    def render(template, messages, **variables):
        (text,), _ = utilities.render_jinja_template([messages], chat_template=template, **TOKENS, **variables)
        return text

    return render


def outcome(render):
    try:
        return render()
    except Exception:  # a DataError, or whatever jinja2 raises there
        return "refused"


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_renders_as_transformers_does(theirs, name, conversation):
    messages = CONVERSATIONS[conversation]
    template = ChatTemplate(TEMPLATES[name], TOKENS)
    prompted = messages[-1]["role"] == "user"
    variables = {"date": "1 May 2024", "tools": [{"name": "ä<b>", "parameters": {"b": 1, "a": [None, True]}}]}
    for more in ({}, variables):
        given = {"add_generation_prompt": prompted, **more}
        expected = outcome(functools.partial(theirs, TEMPLATES[name], messages, **given))
        assert expected == outcome(lambda given=given: template.render(messages, **given).text)
        assert conversation == "system" or expected != "refused"


def test_a_date_and_special_tokens_are_there():
    dated = ChatTemplate("{{ strftime_now('%Y') | length }}{{ bos_token }}{{ eos_token }}.", TOKENS)
    assert dated.render(said("")).text == "4<s></s>."
    assert ChatTemplate("{{ bos_token }}.").render(said("")).text == "."


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("chatml", ["a<|im_end|>", "b\nb<|im_end|>"]),
        ("inst", [" a </s>", " b\nb </s>"]),
        ("headers", ["a<|eot|>", "b\nb<|eot|>"]),
        ("turns", ["a<end_of_turn>", "b\nb<end_of_turn>"]),
        ("marked", ["a</s>", "b\nb </s>"]),
        ("thinks", ["a</s>", "<think></think>b\nb </s>"]),
    ],
)
def test_knows_where_the_answers_are(name, expected):
    ends = ("</s>", "<|im_end|>", "<|eot|>", "<end_of_turn>")
    content = "b\nb " if name in ("marked", "thinks") else "b\nb"
    template = ChatTemplate(TEMPLATES[name], TOKENS, ends)
    rendered = render_with_answers(template, said("a", "a", "b", content))
    assert [rendered.text[begin:end] for begin, end in rendered.answers] == expected
    assert rendered.text == template.render(said("a", "a", "b", content), add_generation_prompt=False).text


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}so: {% endif %}",
        "{% for m in messages %}{{ m.content | replace(m.content, 'x') }}{% endfor %}",
        "{% for m in messages %}{% if loop.last and m.role != 'user' %}think{% endif %}{{ m.content }}{% endfor %}",
    ],
)
def test_answers_that_are_written_otherwise_than_asked_for_are_refused(template):
    with pytest.raises(DataError, match="the chat template does not write the answer 'b' between"):
        render_with_answers(ChatTemplate(template), said("a", "b", "c", "d"))


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], r"messages: expected a list of at least one message, got \[\]"),
        (["hi"], 'message 1: expected an object {"role": "…", "content": "…"}, got hi'),
        ([{"role": "user"}], "message 1: content: expected a text, got nothing"),
        ([{"content": "hi"}], "message 1: role: expected one of system, user, assistant, tool, got 'None'"),
        (said("a") + said("b", system="late"), "message 2: role: expected system to come first"),
        (said("a", "b"), "message 2: expected the user to speak last, got the assistant"),
        (said("a") + said("b"), "refuses the conversation or raises an error: roles must alternate"),
        ([{"role": "user", "content": "a", "x": {1, 2}}], "is not JSON: Object of type set"),
    ],
)
def test_refuses_what_is_not_a_conversation(messages, message):
    with pytest.raises(DataError, match=message):
        ChatTemplate(INST, TOKENS).render(messages)


LOOPS = "{% for a in l %}{% for b in l %}{% endfor %}{% endfor %}"


@pytest.mark.end_to_end
@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for i in range(10**9) %}{% endfor %}", "Range too big"),
        (f"{{% set l = range(99999)|list %}}{LOOPS}", f"takes longer than {chat.SECONDS} s"),
        ("{{ 'a' * 10**10 }}", "more than 1024 MiB of memory"),
        # By a factor that leaves no time to fill the memory before its limit: the limit of time would come first.
        ("{% set ns=namespace(x='a') %}{% for i in range(6) %}{% set ns.x = ns.x * 1024 %}{% endfor %}", "memory"),
        ("{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}", "writes more than 16777216 characters"),
        ("{{ ''.__class__.__mro__ }}", "'__class__' of 'str' object is unsafe"),
        ("{{ cycler.__init__.__globals__.os.system('exit 1') }}", "is unsafe"),
        ("{{ messages.append(1) }}", "'append' of 'list' object is unsafe"),
        ("{% set ns = namespace(__class__=1) %}", "the name '__class__' is private"),
        ("{% include '/etc/passwd' %}", "no loader"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "infinite recursion"),
        ("{% for %}", r"\(line 1\): Expected an expression"),
        ("{{ nothing.at.all }}", "'nothing' is undefined"),
        ("{{ raise_exception('x\n' * 10**6) }}", "raises an error: x x x"),
    ],
)
def test_a_template_that_loops_or_reaches_out_is_refused_in_a_sentence(template, message):
    hostile = ChatTemplate(template)
    with pytest.raises(DataError, match=message) as caught:
        hostile.render(said("hi"))
    assert len(str(caught.value)) < 500
    assert "\n" not in str(caught.value)
    hostile.text = "{{ messages[0].content }}"  # the next one is rendered as ever
    assert hostile.render(said("hi")).text == "hi"


def test_no_template_writes_a_file(tmp_path):
    path = tmp_path / "written"
    program = f"""
from training.system import limit_process; limit_process(1 << 30)
open({str(path)!r}, "w", buffering=1).write("x\\n")
"""
    environment = chat.os.environ | {"PYTHONPATH": chat._ROOT}
    command = [chat.sys.executable, "-c", program]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert "File too large" in done.stderr
    assert path.read_bytes() == b""


def test_a_template_and_jinja2_are_needed(monkeypatch):
    with pytest.raises(DataError, match="the model has no chat template"):
        ChatTemplate.of(ByteTokenizer())
    monkeypatch.setattr(chat.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"needs jinja2: pip install -e '.*\[models\]'"):
        ChatTemplate("").render(said("hi"))


def test_comes_with_a_tokenizer(tmp_path):
    made = conversing()
    bos, eos, end = map(made.inner.token_to_id, ("<s>", "</s>", "<end>"))
    made.save(tmp_path / "tokenizer.json")
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    assert (tokenizer.chat_template, tokenizer.fingerprint()) == (made.chat_template, made.fingerprint())
    assert tokenizer.end_tokens == (eos, end)
    template = ChatTemplate.of(tokenizer)
    assert template.ends == ("</s>", "<end>")
    text = template.render(said("hello")).text
    hello, asks = map(tokenizer.encode, ("user: hello", "assistant: "))
    assert tokenizer.encode_markup(text) == [bos, *hello, end, *asks]
    assert len(tokenizer.encode(text)) > len(hello + asks) + 2  # there, the names of special tokens are plain text
    assert tokenizer.decode([bos, *hello, end]) == "user: hello"


def test_an_answer_ends_with_what_the_template_writes_after_it():
    made = conversing()
    end, eos = map(made.inner.token_to_id, ("<end>", "</s>"))
    only_eos = LibraryTokenizer(made.inner, special=made.special._replace(ends=()), chat_template=made.chat_template)
    assert (ends_of_turn(only_eos), only_eos.end_tokens) == ((end,), (eos,))
    plain = LibraryTokenizer(made.inner, special=made.special, chat_template="{{ messages[-1].content }}")
    assert ends_of_turn(plain) == ()
