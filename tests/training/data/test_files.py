"""The user's files: what is read, what is held out, and a clear sentence for everything that is wrong."""

import gzip
import itertools
import json
import os
import re

import pytest

from training.data import files
from training.data.files import read_corpus
from training.data.records import DataError, Document, Labeled, Pair, hash64, record_key
from training.data.stretches import sections


def write(path, contents):
    path.write_bytes(contents if isinstance(contents, bytes) else contents.encode())
    return path


def sides(corpus):
    return list(corpus.train), list(corpus.validation)


def assert_refused(path, message, kind="text", **options):
    with pytest.raises(DataError, match=message):
        sides(read_corpus([path], kind, **options))


def json_lines(path, texts):
    return write(path, "".join(json.dumps({"text": text}) + "\n" for text in texts))


def text_of(n):
    return "\n\n".join(f"Paragraph {i} says {i * i} things.\nAnd a second line {i}." for i in range(n)) + "\n"


@pytest.mark.parametrize("size", [30, 40, 90, 10**6])
def test_sections_join_to_the_text_and_end_between_paragraphs(size):
    text = text_of(50)
    found = list(sections(text.splitlines(keepends=True), size))
    assert "".join(part for _, part in found) == text
    lines = text.splitlines()
    for first, part in found:
        assert part.startswith("Paragraph")
        assert lines[first - 1] == part.splitlines()[0]
    assert len(found) == {30: 50, 40: 50, 90: 25, 10**6: 1}[size]


def test_a_text_is_cut_where_a_part_of_it_is_held_out_and_nowhere_else(tmp_path):
    """What is held out and what stays, in the order of their lines, are the file; no two that stay are neighbors."""
    text = text_of(9000)
    corpus = read_corpus([write(tmp_path / "a.txt", text)], "text")
    train, validation = sides(corpus)
    assert list(corpus.test) == []
    in_order = sorted((int(d.where.rpartition(":")[2]), d.text, d in train) for d in [*train, *validation])
    firsts, texts, kinds = zip(*in_order, strict=True)
    assert "".join(texts) == text
    assert list(firsts) == [1 + "".join(texts[:i]).count("\n") for i in range(len(texts))]
    assert all(a != b for a, b in itertools.pairwise(kinds))
    assert 5 <= len(validation) <= 10
    assert max(len(document.text) for document in train) > len(text) / 15


@pytest.mark.parametrize("beside", [False, True])
def test_texts_that_stay_keep_what_held_out_texts_have_too(tmp_path, beside):
    """A common preamble; the names of speakers in a play; the first lines of programs."""
    preamble = "Below is an instruction.\n\nimport numpy as np\n\n"
    texts = [f"{preamble}HAMLET.\n\nWhat is {i} times {i}?" for i in range(200)]
    held = json_lines(tmp_path / "held.jsonl", [f"{preamble}HAMLET.\n\nAnother {i}" for i in range(9)])
    options = {"validation_paths": [held]} if beside else {}
    train, validation = sides(read_corpus([json_lines(tmp_path / "a.jsonl", texts)], "text", **options))
    assert {d.text for d in train} == set(texts) - {d.text for d in validation}
    assert (len(train), len(validation)) == ((200, 9) if beside else (190, 10))
    play = write(tmp_path / "play.txt", "".join(f"HAMLET.\nLine {i}, of {i * i}.\n\n" for i in range(3000)))
    train, validation = sides(read_corpus([play], "text"))
    assert sum(d.text.count("HAMLET.") for d in train + validation) == 3000
    assert 2800 < sum(d.text.count("HAMLET.") for d in train) < 2900


def test_a_validation_file_is_held_out_whole_and_left_out_of_training(tmp_path):
    a = write(tmp_path / "a.tsv", "two\tdos\ntwo\tpar\n" + "".join(f"{i}\tnúmero {i}\n" for i in range(40)))
    b = write(tmp_path / "b.tsv", "two \tdos\nten\tdiez\n")
    corpus = read_corpus([a], "pairs", validation_paths=[b])
    train, validation = sides(corpus)
    assert train == [Pair("two", "par", f"{a}:2"), *(Pair(f"{i}", f"número {i}", f"{a}:{i + 3}") for i in range(40))]
    assert validation == [Pair("two ", "dos", f"{b}:1"), Pair("ten", "diez", f"{b}:2")]
    share = 100 * len("two dos") / sum(len(f"{pair.source} {pair.target}") for pair in [*train, validation[0]])
    note = f"1 of 42 training records ({share:.2g} % of the text) is left out, since it is identical to held-out data"
    assert corpus.notes() == [note]


def test_training_records_that_are_nearly_all_held_out_stop_the_run(tmp_path):
    """With --validation-data of the same file, or of much of it."""
    a = json_lines(tmp_path / "a.jsonl", [f"text {i:03}" for i in range(100)])
    b = json_lines(tmp_path / "b.jsonl", [f"text {i:03}" for i in range(6)])
    for held, n in ((a, 100), (b, 6)):
        message = (
            rf"^--validation-data: expected at most 5 % .* in it, got {n}\.\d %: {n} of 100 .* remove them from one"
        )
        assert_refused(a, message, validation_paths=[held])
    c = json_lines(tmp_path / "c.jsonl", [f"text {i:03}" for i in range(5)])
    assert len(sides(read_corpus([a], "text", validation_paths=[c]))[0]) == 95


def test_a_record_of_which_there_are_many_stays(tmp_path):
    """Held out, all its copies would be, a third of the data."""
    word = min((f"word {i}" for i in range(999)), key=hash64)  # the first that would be held out
    texts = [*(f"text {i}" for i in range(60)), *[word] * 30]
    train, validation = sides(read_corpus([json_lines(tmp_path / "a.jsonl", texts)], "text"))
    assert (len(train), len(validation)) == (87, 3)


def test_empty_records_are_left_out_and_counted(tmp_path):
    lines = ['{"text": "one"}', "", '{"text": null}', "null", '{"text": "  "}', '{"text": "two"}', " "]
    jsonl = write(tmp_path / "a.jsonl", "\n".join(lines) + "\n")
    tsv = write(tmp_path / "a.tsv", "a\tb\n\n\tb\nc\t \nd\te\n")
    for path, kind, expected, (n, total, first) in (
        (jsonl, "text", [Document("one", f"{jsonl}:1"), Document("two", f"{jsonl}:6")], (5, 7, 2)),
        (tsv, "pairs", [Pair("a", "b", f"{tsv}:1"), Pair("d", "e", f"{tsv}:5")], (3, 5, 2)),
    ):
        corpus = read_corpus([path], kind)
        train, validation = sides(corpus)
        assert sorted(train + validation) == expected
        note = f"{n} of {total} records are left out: a field is empty or null, as in {path}:{first}"
        assert corpus.notes() == [note]
        held = read_corpus([write(tmp_path / f"b{path.suffix}", expected_text(kind))], kind, validation_paths=[path])
        assert (len(sides(held)[1]), held.notes()) == (2, [f"held out: {note}"])
    empty = write(tmp_path / "empty.jsonl", '{"text": ""}\nnull\n')
    assert_refused(empty, r"empty\.jsonl: expected a record, got none: a field is empty or null$")


def expected_text(kind):
    return '{"text": "else"}\n' if kind == "text" else "else\twhere\n"


def test_whole_documents_are_kept_when_there_is_a_validation_file(tmp_path):
    a, b = write(tmp_path / "a.txt", text_of(200)), write(tmp_path / "b.txt", "Other words.\n")
    train, validation = sides(read_corpus([a], "text", validation_paths=[b]))
    assert (train, validation) == ([Document(text_of(200), f"{a}:1")], [Document("Other words.\n", f"{b}:1")])


def test_json_lines_of_every_kind(tmp_path):
    rows = [{"text": f"t {i}", "label": "ab"[i % 2], "source": f"s {i}", "target": f"u {i}"} for i in range(9)]
    path = write(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    for kind, record in [
        ("text", lambda i, r, w: Document(r["text"], w)),
        ("pairs", lambda i, r, w: Pair(r["source"], r["target"], w)),
        ("labeled", lambda i, r, w: Labeled(r["label"], r["text"], w)),
    ]:
        train, validation = sides(read_corpus([path], kind))
        assert len(validation) == 1
        expected = {record(i, row, f"{path}:{i + 1}") for i, row in enumerate(rows)}
        assert set(train + validation) == expected


def test_tsv_files_keep_everything_but_the_lines_end(tmp_path):
    a = write(tmp_path / "a.tsv", "ham\t hi  there \r\nspam\tbuy\u2028now\n")
    b = write(tmp_path / "b.tsv", "ham\tlast line without end")
    train, validation = sides(read_corpus([a], "labeled", validation_paths=[b]))
    assert train == [Labeled("ham", " hi  there ", f"{a}:1"), Labeled("spam", "buy\u2028now", f"{a}:2")]
    assert validation == [Labeled("ham", "last line without end", f"{b}:1")]


def test_a_byte_order_mark_is_no_text(tmp_path):
    a = write(tmp_path / "a.tsv", b"\xef\xbb\xbfone\tuno\n")
    b = write(tmp_path / "b.tsv", b"two\tdos\n")
    assert sides(read_corpus([a], "pairs", validation_paths=[b]))[0] == [Pair("one", "uno", f"{a}:1")]


def test_pairs_with_the_same_source_are_on_one_side(tmp_path):
    path = write(tmp_path / "a.tsv", "".join(f"word {j % 40}\tx {j}\n" for j in range(400)))
    train, validation = sides(read_corpus([path], "pairs"))
    assert len(validation) == 20
    assert not {record_key(r) for r in train} & {record_key(r) for r in validation}


def test_the_fingerprint_follows_the_contents_and_not_the_names(tmp_path):
    a, b = write(tmp_path / "a.txt", text_of(50)), write(tmp_path / "b.txt", text_of(50))
    c = write(tmp_path / "c.txt", text_of(51))
    first, second, third = (read_corpus([path], "text").fingerprint for path in (a, b, c))
    assert first == second != third
    assert read_corpus([a], "text", validation_fraction=0.2).fingerprint != first
    assert read_corpus([a], "text", validation_paths=[c]).fingerprint != first


def test_large_files_hold_out_no_more_than_validating_can_bear(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LARGEST_VALIDATION", 300)
    path = write(tmp_path / "a.tsv", "".join(f"source {j:04}\ttarget\n" for j in range(1000)))
    validation = sides(read_corpus([path], "pairs"))[1]
    assert len(validation) == round(1000 * 300 / path.stat().st_size)


@pytest.mark.parametrize(("words", "line"), [(40_000, " "), (40_000, "\n")])
def test_the_share_that_is_held_out_is_what_was_asked_for(tmp_path, words, line):
    """One line of a hundred thousand words is no record of its own."""
    path = tmp_path / "long.txt"
    path.write_text(line.join(f"word{n * n}" for n in range(words)))
    corpus = read_corpus([path], "text")
    sizes = [sum(len(d.text) for d in part) for part in (corpus.train, corpus.validation)]
    assert sum(sizes) == pytest.approx(path.stat().st_size, rel=0.001)
    assert sizes[1] / sum(sizes) == pytest.approx(corpus.held_out, rel=0.1)
    assert all(d.text.startswith("word") for d in corpus.train)


OF_PAIRS = 'expected an object {"source": "…", "target": "…"}'
OF_LABELS = 'expected an object {"label": "…", "text": "…"}'
BAD_FILES = {
    "empty": ("a.txt", b"", "text", "a.txt is empty"),
    "blank": ("a.txt", b" \n\t\n", "text", "a.txt has nothing but white space"),
    "binary": ("a.txt", b"one\ntwo\0\n", "text", "a.txt:2: zero byte at byte offset 7: a binary file, expected text"),
    "utf16": ("a.txt", "text".encode("utf-16"), "text", "a.txt begins like UTF-16; convert it to UTF-8"),
    "latin1": ("a.txt", b"one\ncaf\xe9 two\n", "text", "a.txt:2: not UTF-8 at byte offset 7 (byte 0xe9); convert"),
    "cut": ("a.txt", "one\ntwo €".encode()[:-1], "text", "a.txt:2: not UTF-8 at byte offset 8 (byte 0xe2)"),
    "short": ("a.txt", b"one line\n", "text", "a.txt has 1 distinct record, too few to hold some out"),
    "json": ("a.jsonl", b'{"text": "a"}\n{"text": }\n', "text", "a.jsonl:2: not a JSON object on one line"),
    "json deep": ("a.jsonl", b"[" * 200_000, "text", "a.jsonl:1: not a JSON object on one line (nested too deeply)"),
    "json list": ("a.jsonl", b'["a"]\n', "text", 'a.jsonl:1: expected an object {"text": "…"}, got ["a"]'),
    "json key": ("a.jsonl", b'{"source": "c"}\n', "pairs", f'a.jsonl:1: {OF_PAIRS}, got {{"source": "c"}}'),
    "json number": ("a.jsonl", b'{"label": 1, "text": "b"}\n', "labeled", f'a.jsonl:1: {OF_LABELS}, got {{"label": 1'),
    "surrogate": ("a.jsonl", b'{"text": "\\ud800"}\n', "text", "a.jsonl:1: the text has a lone surrogate"),
    "no tab": ("a.tsv", b"a\tb\nc d\n", "pairs", "a.tsv:2: expected source TAB target, got 0 TABs: 'c d'"),
    "two tabs": ("a.tsv", b"a\tb\tc\n", "labeled", r"a.tsv:1: expected label TAB text, got 2 TABs: 'a\tb\tc'"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_files_are_named_with_line_and_reason(tmp_path, case):
    name, contents, kind, message = BAD_FILES[case]
    write(tmp_path / name, contents)
    with pytest.raises(DataError, match="^" + re.escape(f"{tmp_path}/{message}")):
        sides(read_corpus([tmp_path / name], kind))


def test_what_cannot_be_read_is_said(tmp_path):
    assert_refused(tmp_path / "none.txt", r"cannot read .*none\.txt: No such file or directory")
    with pytest.raises(DataError, match="no data files were given"):
        read_corpus([], "text")
    path = write(tmp_path / "a.txt", text_of(20))
    assert_refused(path, r"validation_fraction: expected a number between 0 and 1, got 1\.0", validation_fraction=1.0)
    other = write(tmp_path / "b.tsv", "c\td\ne\n")
    good = write(tmp_path / "a.tsv", "a\tb\n")
    assert_refused(good, r"b\.tsv:2: expected source TAB target", "pairs", validation_paths=[other])


@pytest.mark.parametrize("kind", ["text", "pairs"])
def test_what_is_not_a_file_is_refused(tmp_path, kind):
    """A pipe would be waited for, and be empty when it is read for the second time."""
    os.mkfifo(tmp_path / "pipe")
    os.mkfifo(tmp_path / "pipe.parquet")
    for path, what in ((tmp_path / "pipe", "a pipe"), (tmp_path / "pipe.parquet", "a pipe"), ("/dev/null", "a device")):
        assert_refused(path, f"cannot read {path}: expected a file, got {what}", kind)


def test_a_directory_of_text_is_its_files_by_name(tmp_path):
    """Hidden ones are left out, but in a directory that is named, which may be hidden itself."""
    folder = tmp_path / ".texts"
    hidden = (".ipynb_checkpoints/b-checkpoint.txt", "._b.txt", "a/.git/c.md", ".d.TXT")
    for name in ("b.txt", "a/z.md", "a/Y.TXT", "c.rst", "a/.keep", "data.jsonl", *hidden):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write(folder / name, f"{name} one.\n\n{name} two, three, four.\n" * 30)
    with gzip.open(folder / "0.txt.gz", "wb") as file:
        file.write(b"packed\n")
    named = [folder / name for name in ("0.txt.gz", "a/Y.TXT", "a/z.md", "b.txt")]
    one, several = (read_corpus(paths, "text") for paths in ([folder], named))
    assert (one.fingerprint, sides(one)) == (several.fingerprint, sides(several))
    other = write(tmp_path / "other.txt", "something else\n")
    assert sides(read_corpus([other], "text", validation_paths=[folder]))[1] == [
        Document(text.read_text() if text.suffix != ".gz" else "packed\n", f"{text}:1") for text in named
    ]


def test_a_name_that_is_not_utf8_is_read_and_shown(tmp_path):
    path = tmp_path / os.fsdecode(b"caf\xe9.tsv")
    write(path, "one\tuno\ntwo\tdos\n")
    train, validation = sides(read_corpus([path], "pairs"))
    assert {r.where for r in train + validation} == {f"{tmp_path}/caf\\udce9.tsv:{n}" for n in (1, 2)}
    write(path, "one\n")
    assert_refused(path, r"caf\\udce9\.tsv:1: expected source TAB target", "pairs")
    write(path, b"one \xff\tuno\n")
    assert_refused(path, r"caf\\udce9\.tsv:1: not UTF-8 at byte offset 4", "pairs")


def test_a_directory_without_text_or_for_a_mixture_is_refused(tmp_path):
    assert_refused(tmp_path, r"expected text files \(.txt and .md\) in it, got an empty directory")
    write(tmp_path / "a.bin", "a\n")
    assert_refused(tmp_path, r"expected a directory of the library datasets .*, or of text")
    write(tmp_path / "a.txt", "a\n")
    assert_refused(tmp_path, "a directory of 1 files, but only files have weights; give each file its w", counted=True)
    assert_refused(tmp_path, "expected a directory of the library datasets", "pairs")
