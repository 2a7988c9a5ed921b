"""Texts by a grammar: which tokens may come next, and when a text is whole."""

import numpy as np
import pytest

from tests.run_cases import BYTES, LETTERS, conversing
from training.generation.grammars import Grammars, of_json

pytest.importorskip("llguidance")

AGE = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"], "additionalProperties": False}
DIGITS = {*b"0123456789"}


def permitted(grammar, tokens):
    return {*np.flatnonzero(grammar.permits(tokens)).tolist()}


def test_only_tokens_that_can_become_a_text_are_permitted():
    """White space is at most one space, or a new line and 20 spaces; a text ends only where it is whole."""
    ends = (BYTES.eos_token, BYTES.bos_token)
    grammar, text = Grammars(BYTES).of(f"start: {of_json(AGE)}", ends), b'{ "age":1}'
    expected = [{*b"{"}, {*b' \n"'}, {*b'"'}, {*b"a"}, {*b"g"}, {*b"e"}, {*b'"'}, {*b" \n:"}, {*b" \n-"} | DIGITS]
    expected += [{*b" \n}"} | DIGITS, {*ends}]
    for i, tokens in enumerate(expected):
        assert permitted(grammar, [*text[:i]]) == tokens, text[:i]
        assert grammar.is_whole([*text[:i]]) == (i == len(text))
    assert grammar.permits([*text, BYTES.eos_token]).all()  # nobody reads what follows


def test_a_copy_follows_a_text_of_its_own():
    grammar = Grammars(BYTES).of("start: /[ab]*/", [BYTES.eos_token])
    other = grammar.copy()
    assert permitted(grammar, [*b"abba"]) == {*b"ab", BYTES.eos_token}
    assert not grammar.problem
    assert permitted(other, [*b"b"]) == {*b"ab", BYTES.eos_token}
    grammar.permits([*b"abbac"])
    assert "c" in grammar.problem
    assert not other.problem


def test_a_text_may_be_written_in_any_tokens():
    """Every way to cut a text into tokens is permitted where a grammar leaves a choice."""
    tokenizer = conversing()
    whole = tokenizer.encode("the cat sat")
    letters = [tokenizer.encode(letter)[0] for letter in "the cat sat"]
    assert len(whole) < len(letters)
    for tokens in (whole, letters):
        grammar = Grammars(tokenizer).of("start: /[a-z ]*/", tokenizer.end_tokens)
        for i, token in enumerate(tokens):
            assert grammar.permits(tokens[:i])[token]
        assert {*tokenizer.end_tokens} <= permitted(grammar, tokens)


def test_special_tokens_are_written_where_a_rule_names_them():
    tokenizer = conversing()
    grammars, special = Grammars(tokenizer), tokenizer.special_token("<s>")
    rule = grammars.literal('<s>a "b"')
    assert rule == f'<[{special}]> "a \\"b\\""'
    grammar = grammars.of(f"start: {rule}", tokenizer.end_tokens)
    assert permitted(grammar, []) == {special}
    assert special not in permitted(grammar, [special])


@pytest.mark.parametrize(
    ("tokenizer", "rules", "message"),
    [
        (LETTERS, f"start: {of_json(AGE)}", "the vocabulary has no token to continue with; simplify it"),
        (BYTES, f"start: {of_json({'not': {}})}", "Unimplemented keys"),
        (BYTES, "start: nothing", "unknown name"),
    ],
)
def test_what_cannot_be_written_is_refused(tokenizer, rules, message):
    with pytest.raises(ValueError, match=f"expected a form that llguidance knows .*got .*{message}"):
        Grammars(tokenizer).of(rules, [tokenizer.eos_token])


def test_a_dead_end_is_told():
    """The vocabulary has letters, and no digits."""
    grammar = Grammars(LETTERS).of('start: "a" /[0-9]/ | "b"', [LETTERS.eos_token])
    assert grammar.permits([])[LETTERS.encode("a")[0]]
    grammar.permits(LETTERS.encode("a"))
    assert grammar.problem == "the vocabulary has no token to continue with"
