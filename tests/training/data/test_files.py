"""The user's files: what is read, what is held out, and a clear sentence for everything that is wrong."""

import gzip
import json
import os
import re

import pytest

from training.data import files
from training.data.files import FileRecords, check_file, read_corpus, sections
from training.data.records import DataError, Document, Labeled, Pair, joined_bytes, paragraphs, record_key


def write(path, contents):
    path.write_bytes(contents if isinstance(contents, bytes) else contents.encode())
    return path


def assert_refused(path, message, kind="text", **options):
    with pytest.raises(DataError, match=message):
        read_corpus([path], kind, **options)


def sides(corpus):
    return list(corpus.train), list(corpus.validation)


def text_of(n):
    return "\n\n".join(f"Paragraph {i} says {i * i} things.\nAnd a second line {i}." for i in range(n)) + "\n"


@pytest.mark.parametrize("size", [20, 40, 90, 10**6])
def test_sections_join_to_the_text_and_end_between_paragraphs(size):
    text = text_of(50)
    found = list(sections(text.splitlines(keepends=True), size))
    assert "".join(part for _, part in found) == text
    lines = text.splitlines()
    for first, part in found:
        assert part.startswith("Paragraph")
        assert lines[first - 1] == part.splitlines()[0]
    assert len(found) == {20: 50, 40: 50, 90: 25, 10**6: 1}[size]


def test_a_paragraph_without_end_is_cut_between_lines():
    lines = ["x" * 9 + "\n"] * 30
    assert [len(part) for _, part in sections(lines, 10)] == [40] * 7 + [20]


def test_blank_lines_make_no_section():
    assert list(sections(["\n", " \n"], 1)) == []
    assert [part for _, part in sections(["a\n", "\n", "b\n", "\n", "\n"], 1)] == ["a\n\n", "b\n\n\n"]


def test_a_text_file_is_split_by_sections_without_loss(tmp_path):
    text = text_of(400)
    corpus = read_corpus([write(tmp_path / "a.txt", text)], "text", validation_fraction=0.1)
    train, validation = sides(corpus)
    assert sorted(paragraphs(text)) == sorted(p for d in train + validation for p in paragraphs(d.text))
    share = len(joined_bytes(validation)) / len(text)
    assert 0.05 < share < 0.15
    line = int(train[3].where.rsplit(":", 1)[1])
    assert text.splitlines()[line - 1] == train[3].text.splitlines()[0]
    assert list(corpus.test) == []


def test_a_paragraph_that_is_held_out_is_not_trained_on(tmp_path):
    refrain = "A refrain that comes again.\n\n"
    text = "".join(f"Verse {i} of the long song, number {i}.\n\n{refrain}" for i in range(300))
    corpus = read_corpus([write(tmp_path / "a.txt", text)], "text")
    train, validation = sides(corpus)
    assert not {p for d in train for p in paragraphs(d.text)} & {p for d in validation for p in paragraphs(d.text)}
    assert corpus.train.dropped > 200


def test_a_validation_file_is_held_out_whole_and_left_out_of_training(tmp_path):
    a = write(tmp_path / "a.tsv", "one\tuno\ntwo\tdos\nthree\ttres\n")
    b = write(tmp_path / "b.tsv", "two\tdos\nten\tdiez\n")
    train, validation = sides(read_corpus([a], "pairs", validation_paths=[b]))
    assert train == [Pair("one", "uno", f"{a}:1"), Pair("three", "tres", f"{a}:3")]
    assert validation == [Pair("two", "dos", f"{b}:1"), Pair("ten", "diez", f"{b}:2")]


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


def test_a_file_is_checked_in_blocks(tmp_path, monkeypatch):
    """Every block size gives the same verdict, also when a block ends inside a character or a line."""
    good = "Zeile eins ä€🙂\nzwei\n".encode() * 3
    bad = good + b"drei \xff vier\n"
    for block in (1, 2, 3, 5, 7, 64):
        monkeypatch.setattr(files, "BLOCK", block)
        assert check_file(write(tmp_path / "a", good))[0] == len(good)
        with pytest.raises(DataError, match=rf"a:7: not UTF-8 at byte offset {len(good) + 5} \(byte 0xff\)"):
            check_file(write(tmp_path / "a", bad))


def test_lines_longer_than_a_block_are_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "BLOCK", 16)
    path, other = write(tmp_path / "a.txt", "äöü" * 50), write(tmp_path / "b.txt", "b")
    train, _ = sides(read_corpus([path], "text", validation_paths=[other]))
    assert [d.text for d in train] == ["äöü" * 50]


OF_PAIRS = 'expected an object {"source": "…", "target": "…"}'
OF_LABELS = 'expected an object {"label": "…", "text": "…"}'
BAD_FILES = {
    "empty": ("a.txt", b"", "text", "a.txt is empty"),
    "blank": ("a.txt", b" \n\t\n", "text", "a.txt has nothing but white space"),
    "binary": ("a.txt", b"one\ntwo\0\n", "text", "a.txt:2: zero byte at byte offset 7: a binary file, expected text"),
    "utf16": ("a.txt", "text".encode("utf-16"), "text", "a.txt begins like UTF-16; convert it to UTF-8"),
    "latin1": ("a.txt", b"one\ncaf\xe9 two\n", "text", "a.txt:2: not UTF-8 at byte offset 7 (byte 0xe9); convert"),
    "cut": ("a.txt", "one\ntwo €".encode()[:-1], "text", "a.txt:2: not UTF-8 at byte offset 8 (byte 0xe2)"),
    "short": ("a.txt", b"one line\n", "text", "a.txt has 1 distinct records, too few to hold some out"),
    "json": ("a.jsonl", b'{"text": "a"}\n{"text": }\n', "text", "a.jsonl:2: not a JSON object on one line"),
    "json blank line": ("a.jsonl", b'{"text": "a"}\n\n', "text", "a.jsonl:2: not a JSON object on one line"),
    "json deep": ("a.jsonl", b"[" * 200_000, "text", "a.jsonl:1: not a JSON object on one line (nested too deeply)"),
    "json list": ("a.jsonl", b'["a"]\n', "text", 'a.jsonl:1: expected an object {"text": "…"}, got ["a"]'),
    "json key": ("a.jsonl", b'{"source": "c"}\n', "pairs", f'a.jsonl:1: {OF_PAIRS}, got {{"source": "c"}}'),
    "json number": ("a.jsonl", b'{"label": 1, "text": "b"}\n', "labeled", f'a.jsonl:1: {OF_LABELS}, got {{"label": 1'),
    "json empty": ("a.jsonl", b'{"text": "a"}\n{"text": " "}\n', "text", "a.jsonl:2: the text is empty"),
    "surrogate": ("a.jsonl", b'{"text": "\\ud800"}\n', "text", "a.jsonl:1: the text has a lone surrogate"),
    "no tab": ("a.tsv", b"a\tb\nc d\n", "pairs", "a.tsv:2: expected source TAB target, got 0 TABs: 'c d'"),
    "two tabs": ("a.tsv", b"a\tb\tc\n", "labeled", r"a.tsv:1: expected label TAB text, got 2 TABs: 'a\tb\tc'"),
    "empty target": ("a.tsv", b"a\tb\nc\t\n", "pairs", "a.tsv:2: the target is empty"),
    "empty source": ("a.tsv", b"\tb\n", "pairs", "a.tsv:1: the source is empty"),
    "empty label": ("a.tsv", b"a\tb\n \tb\n", "labeled", "a.tsv:2: the label is empty"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_files_are_named_with_line_and_reason(tmp_path, case):
    name, contents, kind, message = BAD_FILES[case]
    write(tmp_path / name, contents)
    with pytest.raises(DataError, match="^" + re.escape(f"{tmp_path}/{message}")):
        sides(read_corpus([tmp_path / name], kind))


def test_a_bad_line_of_a_validation_file_is_named(tmp_path):
    a, b = write(tmp_path / "a.tsv", "a\tb\n"), write(tmp_path / "b.tsv", "c\td\ne\n")
    with pytest.raises(DataError, match=r"b\.tsv:2: expected source TAB target"):
        sides(read_corpus([a], "pairs", validation_paths=[b]))


def test_what_cannot_be_read_is_said(tmp_path):
    assert_refused(tmp_path / "none.txt", r"cannot read .*none\.txt: No such file or directory")
    with pytest.raises(DataError, match="no data files were given"):
        read_corpus([], "text")
    path = write(tmp_path / "a.txt", text_of(20))
    assert_refused(path, r"validation_fraction: expected a number between 0 and 1, got 1\.0", validation_fraction=1.0)


@pytest.mark.parametrize("kind", ["text", "pairs"])
def test_what_is_not_a_file_is_refused(tmp_path, kind):
    """A pipe would be waited for, and be empty when it is read for the second time."""
    os.mkfifo(tmp_path / "pipe")
    os.mkfifo(tmp_path / "pipe.parquet")
    for path, what in ((tmp_path / "pipe", "a pipe"), (tmp_path / "pipe.parquet", "a pipe"), ("/dev/null", "a device")):
        assert_refused(path, f"cannot read {path}: expected a file, got {what}", kind)


def test_a_directory_of_text_is_its_files_by_name(tmp_path):
    folder = tmp_path / "texts"
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
    assert sides(read_corpus([other], "text", validation_paths=[folder]))[1] == list(FileRecords(tuple(named), "text"))


def test_a_directory_that_is_named_may_be_hidden(tmp_path):
    folder = tmp_path / ".texts"
    folder.mkdir()
    write(folder / "a.txt", text_of(20))
    assert read_corpus([folder], "text").fingerprint == read_corpus([folder / "a.txt"], "text").fingerprint


def test_a_directory_without_text_or_for_a_mixture_is_refused(tmp_path):
    assert_refused(tmp_path, r"expected text files \(.txt and .md\) in it, got an empty directory")
    write(tmp_path / "a.bin", "a\n")
    assert_refused(tmp_path, r"expected a directory of the library datasets .*, or of text")
    write(tmp_path / "a.txt", "a\n")
    assert_refused(tmp_path, "a directory of 1 files, but only files have weights; give each file its w", counted=True)
    assert_refused(tmp_path, "expected a directory of the library datasets", "pairs")
