"""Compressed files and tables are the text that is in them."""

import bz2
import gzip
import importlib
import json
import lzma
import os
import sys

import pytest

from tests.training.data.test_files import assert_refused
from training.data.files import read_corpus
from training.data.records import DataError

TEXT = "".join(f"Paragraph {n} says {n * n} things, and é.\n\n" for n in range(300))
LINES = [{"text": f"Document {n} has {n * n} words."} for n in range(60)]
JSONL = "".join(json.dumps(line) + "\n" for line in LINES)


def zstd(data):
    module = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    return pytest.importorskip(module, reason=f"{module} is not installed: pip install -e .[data]").compress(data)


COMPRESS = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstd}
SUFFIXES = [".gz", ".bz2", ".xz", pytest.param(".zst", marks=pytest.mark.end_to_end)]


def parts(path, kind="text", **options):
    corpus = read_corpus([path], kind, **options)
    return [record[:-1] for record in corpus.train], [record[:-1] for record in corpus.validation], corpus.fingerprint


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(("name", "text"), [("a.txt", TEXT), ("a.jsonl", JSONL)])
def test_a_compressed_file_is_its_text(tmp_path, suffix, name, text):
    """Records, split and fingerprint: compressing the data of a run does not keep it from being resumed."""
    (tmp_path / name).write_text(text)
    (tmp_path / (name + suffix)).write_bytes(COMPRESS[suffix](text.encode()))
    assert parts(tmp_path / (name + suffix)) == parts(tmp_path / name)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_damaged_file_is_said(tmp_path, suffix):
    whole = COMPRESS[suffix](TEXT.encode())
    for n, data in enumerate(
        (whole[: len(whole) // 2], b"this is not compressed at all", whole[:40] + bytes([whole[40] ^ 255]) + whole[41:])
    ):
        path = tmp_path / f"{n}.txt{suffix}"
        path.write_bytes(data)
        assert_refused(path, rf"{n}.txt{suffix} is damaged: \S|not UTF-8|binary file")
    (tmp_path / f"empty.txt{suffix}").write_bytes(COMPRESS[suffix](b""))
    assert_refused(tmp_path / f"empty.txt{suffix}", "is empty")
    assert_refused(tmp_path / f"none.txt{suffix}", r"cannot read .*: No such file")


@pytest.fixture
def nothing_installed(monkeypatch):
    def missing(module):
        raise ModuleNotFoundError(module)

    monkeypatch.setattr(importlib, "import_module", missing)


@pytest.mark.usefixtures("nothing_installed")
def test_what_is_not_installed_is_said(tmp_path):
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1")
    assert_refused(path, r"needs pyarrow.parquet: pip install -e '.*\[data\]'")


@pytest.mark.usefixtures("nothing_installed")
@pytest.mark.parametrize("suffix", [".parquet", ".jsonl.zst"])
def test_a_wrong_path_is_said_before_a_missing_library(tmp_path, suffix):
    os.mkfifo(tmp_path / f"pipe{suffix}")
    (tmp_path / f"device{suffix}").symlink_to("/dev/null")
    (tmp_path / f"directory{suffix}").mkdir()
    said = {"pipe": "expected a file, got a pipe", "device": "expected a file, got a device"}
    said |= {"directory": "expected text files .* got an empty directory", "absent": "No such file or directory"}
    for name, message in said.items():
        assert_refused(tmp_path / f"{name}{suffix}", message)


@pytest.fixture
def table():
    """Write columns as a Parquet file."""
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install -e .[data]")
    parquet = importlib.import_module("pyarrow.parquet")

    def write(path, columns):
        parquet.write_table(arrow.table(columns), path, row_group_size=7)
        return path

    return write


def test_a_parquet_file_is_the_json_lines_of_its_rows(tmp_path, table):
    (tmp_path / "a.jsonl").write_text(JSONL)
    path = table(tmp_path / "a.parquet", {"n": list(range(60)), "text": [line["text"] for line in LINES]})
    assert parts(path)[:2] == parts(tmp_path / "a.jsonl")[:2]
    corpus = read_corpus([path], "text")
    assert next(iter(corpus.train)).where.startswith(f"{path}:")
    changed = table(tmp_path / "b.parquet", {"text": ["else", *(line["text"] for line in LINES)]})
    assert parts(changed)[2] != parts(path)[2]


def test_parquet_has_pairs_and_labels(tmp_path, table):
    pairs = table(tmp_path / "p.parquet", {"target": ["x", "y"] * 20, "source": [f"a {n}" for n in range(40)]})
    train, validation, _ = parts(pairs, "pairs", validation_fraction=0.2)
    assert sorted(train + validation) == sorted((f"a {n}", "xy"[n % 2]) for n in range(40))
    assert len(validation) >= 4


def test_empty_rows_are_left_out_and_counted(tmp_path, table):
    """A third of WikiText's rows are empty."""
    texts = ["", "one", None, "two", " \n", "three"]
    path = table(tmp_path / "a.parquet", {"text": texts})
    corpus = read_corpus([path], "text")
    found = sorted((r.text, r.where) for part in (corpus.train, corpus.validation) for r in part)
    assert found == [("one", f"{path}:2"), ("three", f"{path}:6"), ("two", f"{path}:4")]
    assert corpus.notes() == [f"3 of 6 records are left out: a field is empty or null, as in {path}:1"]


def test_wrong_tables_are_refused_in_a_sentence(tmp_path, table):
    path = table(tmp_path / "a.parquet", {"content": ["a"]})
    assert_refused(path, r"a\.parquet has no column 'text', only content: expected text")
    assert_refused(table(tmp_path / "b.parquet", {"text": []}), "has no rows")
    numbers = table(tmp_path / "c.parquet", {"text": [1, 2, 3]})
    assert_refused(numbers, r"c\.parquet:1: text: expected a text, got '1'")
    (tmp_path / "d.parquet").write_bytes(path.read_bytes()[:-9])
    assert_refused(tmp_path / "d.parquet", r"d\.parquet is damaged")


@pytest.mark.parametrize(("first", "last"), [(4, 12), (24, 60)])
def test_damaged_rows_are_said(tmp_path, table, first, last):
    """The header of a page, or what it has, which is compressed."""
    path = table(tmp_path / "a.parquet", {"text": [f"text {n}" for n in range(30)]})
    data = bytearray(path.read_bytes())
    data[first:last] = bytes(byte ^ 255 for byte in data[first:last])
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"^\S*a\.parquet is damaged: [^\n]+$"):
        list(read_corpus([path], "text").train)


@pytest.mark.end_to_end
def test_a_directory_of_datasets_is_its_rows(tmp_path):
    datasets = pytest.importorskip("datasets", reason="datasets is not installed: pip install -e .[data]")
    texts = [f"message {n} of {n * n}" for n in range(60)]
    kinds = {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["ham", "spam"])}
    columns = {"text": texts, "label": [n % 2 for n in range(60)]}
    whole = datasets.Dataset.from_dict(columns, features=datasets.Features(kinds))
    whole.shuffle(seed=3).save_to_disk(tmp_path / "one", num_shards=3)
    train, validation, _ = parts(tmp_path / "one", "labeled")
    assert sorted(train + validation) == sorted((("ham", "spam")[n % 2], text) for n, text in enumerate(texts))
    several = tmp_path / "several"
    datasets.DatasetDict({"train": whole, "test": whole}).save_to_disk(several)
    assert_refused(several, r"holds the parts test, train: name one of them, such as .*several/test", "labeled")
    assert sum(map(len, parts(several / "train", "labeled")[:2])) == 60
