"""Data sets that are streamed: the rows that were asked for and no others, once, in a file like any other."""

import json
import sys
import types

import pytest

from training.data.files import read_corpus
from training.data.hub_names import why_not
from training.data.loading import load_run_data
from training.data.records import DataError
from training.data.streams import Stream, at_commit, parse_stream, streamed
from training.data.tokenizers import ByteTokenizer
from training.runs.directory import RunDirectory
from training.tasks import settings_from

datasets = pytest.importorskip("datasets", reason="datasets is not installed: pip install -e .[data]")
TEXTS = [f"The text of row {n}, with « quotes ».\nAnd its second line." for n in range(30)]


@pytest.fixture(autouse=True)
def _offline(monkeypatch, tmp_path):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


@pytest.fixture
def folder(tmp_path):
    """A data set as the hub has it: a directory of JSON lines, with two splits."""
    (tmp_path / "set").mkdir()
    for split, texts in (("train", TEXTS), ("test", TEXTS[:3])):
        rows = [{"text": t, "body": t.upper(), "n": n} for n, t in enumerate(texts)]
        (tmp_path / "set" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "set"


def texts_of(file):
    return [json.loads(line)["text"] for line in file.read_text("utf-8").splitlines()]


@pytest.mark.parametrize(
    ("behind", "expected"),
    [("", TEXTS), (":test", TEXTS[:3]), (":train[:7]", TEXTS[:7]), (":train[:2]:body", [t.upper() for t in TEXTS[:2]])],
)
def test_the_rows_are_those_of_the_split(folder, tmp_path, behind, expected):
    assert texts_of(streamed(f"hf:{folder}{behind}", "text", tmp_path / "cache")) == expected


def test_it_is_fetched_once_and_no_more_than_asked_for(folder, tmp_path, monkeypatch):
    read, original = [], datasets.load_dataset

    def load(*args, **options):
        assert options["streaming"]
        return original(*args, **options).map(lambda row: read.append(row["n"]) or row)

    monkeypatch.setattr(datasets, "load_dataset", load)
    first = streamed(f"hf:{folder}:train[:5]", "text", tmp_path / "cache")
    assert read[:5] == [0, 1, 2, 3, 4]
    assert len(read) <= 6  # the library looks one row ahead
    assert streamed(f"hf:{folder}:train[:5]", "text", tmp_path / "cache") == first
    assert len(read) <= 6


def test_conversations_pairs_and_labels(tmp_path):
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    kinds = {"text": {"messages": messages}, "pairs": {"source": "a", "target": "b"}}
    kinds |= {"labeled": {"label": "spam", "text": "b"}}
    for kind, row in kinds.items():
        folder = tmp_path / kind
        folder.mkdir()
        (folder / "train.jsonl").write_text(json.dumps({**row, "more": 1}) + "\n")
        file = streamed(f"hf:{folder}", kind, tmp_path / "cache")
        assert [json.loads(line) for line in file.read_text().splitlines()] == [row]
    column = streamed(f"hf:{tmp_path / 'text'}:train:messages", "text", tmp_path / "cache")
    assert json.loads(column.read_text()) == {"messages": messages}


def test_a_run_reads_it_like_a_file(folder, tmp_path):
    values = {"l_max": 16, "batch_size": 2}
    settings = settings_from({"data": [f"hf:{folder}"], **values}, task="d")
    data = load_run_data(settings, tokenizer=ByteTokenizer(), cache_dir=tmp_path / "cache")
    plain = tmp_path / "plain.jsonl"
    plain.write_text("".join(json.dumps({"text": t}) + "\n" for t in TEXTS))
    expected = read_corpus([plain], "text")
    assert [r.text for r in data.corpus.train] == [r.text for r in expected.train]
    (folder / "train.jsonl").unlink()  # as without the network
    again = load_run_data(settings, tokenizer=ByteTokenizer(), cache_dir=tmp_path / "cache")
    assert again.fingerprints == data.fingerprints


def test_messages_name_the_data_set_and_not_a_file_of_the_cache(tmp_path):
    (tmp_path / "set").mkdir()
    rows, name = [{"text": "one"}, {"text": ""}, {"text": None}, {"text": "two"}], f"hf:{tmp_path / 'set'}"
    (tmp_path / "set" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def loaded(**values):
        settings = settings_from({"data": [name], "l_max": 4, "batch_size": 1, **values}, task="d")
        return load_run_data(settings, tokenizer=ByteTokenizer(), cache_dir=tmp_path / "cache")

    assert f"2 of 4 records are left out: a field is empty or null, as in {name}:2" in loaded().notes
    with pytest.raises(DataError, match=r"--validation-data: expected at most 5 % of the training text in it, got 100"):
        loaded(validation_data=[name])
    (tmp_path / "few" / "set").mkdir(parents=True)
    (tmp_path / "few" / "set" / "train.jsonl").write_text(json.dumps({"text": 7}) + "\n")
    with pytest.raises(DataError, match=rf"^hf:{tmp_path}/few/set:1: expected an object"):
        loaded(data=[f"hf:{tmp_path}/few/set"])


def test_what_is_written_is_read():
    assert parse_stream("hf:stories") == Stream("stories", None, "train", None, None)
    assert parse_stream("hf:a/b/en:test[:12]:body text") == Stream("a/b", "en", "test", 12, "body text")


@pytest.mark.parametrize("written", ["hf:", "hf::train", "hf:a:train[5:]", "hf:a:train[:0]", "hf:a:b:c:d", "hf:a:"])
def test_what_is_no_name_is_said(written, tmp_path):
    with pytest.raises(DataError, match="--data: expected hf:NAME, hf:NAME:SPLIT or hf:NAME:SPLIT:COLUMN, got"):
        streamed(written, "text", tmp_path)


@pytest.mark.parametrize(
    ("behind", "kind", "message"),
    [
        ("/none", "text", "cannot be read: "),
        (":validation", "text", "cannot be read: "),
        (":train:story", "text", "expected a column story, got text, body, n; name it, as in hf:NAME:SPLIT:COLUMN"),
        ("", "pairs", "expected a column source and target, got text, body, n"),
        (":train:body", "pairs", "expected no column for pairs, got 'body'; leave it out"),
    ],
)
def test_what_there_is_not_is_said(folder, tmp_path, behind, kind, message):
    with pytest.raises(DataError) as error:
        streamed(f"hf:{folder}{behind}", kind, tmp_path / "cache")
    assert str(error.value).startswith(f"hf:{folder}{behind}: {message}")
    assert "\n" not in str(error.value)
    assert not list((tmp_path / "cache" / "streams").iterdir())


COMMIT = "c" * 40


@pytest.fixture
def hub(monkeypatch, folder):
    """A hub with a data set, whose revisions are those asked for."""
    asked, original = [], datasets.load_dataset

    def info(name, revision):
        if name != "a/b":
            raise OSError("404: no such data set")
        return types.SimpleNamespace(sha=COMMIT if revision is None else "d" * 40)

    def load(name, configuration, *, revision=None, **options):
        asked.append((name, configuration, revision))
        return original(str(folder), **options)

    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.setitem(
        sys.modules, "huggingface_hub", types.SimpleNamespace(HfApi=lambda: types.SimpleNamespace(dataset_info=info))
    )
    return asked


def test_a_revision_is_read(hub, tmp_path):
    files = {
        name: streamed(name, "text", tmp_path) for name in ("hf:a/b", "hf:a/b@v2", "hf:a/b/en@v2:test", "hf:a/b@v3")
    }
    assert hub == [("a/b", None, None), ("a/b", None, "v2"), ("a/b", "en", "v2"), ("a/b", None, "v3")]
    assert len({*files.values()}) == 4
    for wrong in ("hf:a/b@", "hf:a/b@-x", "hf:a/b@v2@v3"):
        with pytest.raises(DataError, match="--data: expected a revision behind @, as in hf:NAME@main, got"):
            parse_stream(wrong)


def test_names_at_their_commit(hub, folder):
    assert at_commit("hf:a/b") == f"hf:a/b@{COMMIT}"
    assert at_commit("hf:a/b/en@v2:train[:9]:body=0.5") == f"hf:a/b/en@{'d' * 40}:train[:9]:body=0.5"
    assert at_commit("hf:a/b=2") == f"hf:a/b@{COMMIT}=2"
    for same in (f"hf:x/y@{COMMIT}", f"hf:{folder}:test", "docs", "a.txt=0.5", str(folder)):
        assert at_commit(same) == same
    with pytest.raises(DataError, match="hf:x/y: 404: no such data set"):
        at_commit("hf:x/y")


@pytest.mark.parametrize("error", ["httpx.ConnectError", "requests.ConnectionError", "socket.gaierror"])
def test_a_missing_network_is_not_a_missing_name(error):
    module, _, name = error.partition(".")
    found = ValueError("Got: ConnectError")
    found.__cause__ = getattr(pytest.importorskip(module), name)("Name or service not known")
    assert why_not(found) == "the hub cannot be reached (no network?)"
    assert why_not(ValueError("404\nmore")) == "404"


def test_a_run_records_the_commit_and_resumes_by_the_same_command(hub, called, tmp_path):
    small = ["--schedule", "constant", "--peak", 1e9, "--l_max", 16, "--L", 1, "--H", 1, "--d_e", 8, "--d_mlp", 8]
    small += ["--tokenizer", "bytes", "--batch-size", 2, "--quiet", "--no-tensorboard", "--eval-batches", 1]
    small += ["--run", tmp_path / "run", "--cache", tmp_path / "cache"]
    assert called("train", "d", "--data", "hf:a/b=2", "hf:a/b@v2:test=1", *small, "--steps", 1)[0] == 0
    recorded = RunDirectory(tmp_path / "run").description().settings.data
    assert recorded == (f"hf:a/b@{COMMIT}=2", f"hf:a/b@{'d' * 40}:test=1")
    assert [revision for _, _, revision in hub] == [COMMIT, "d" * 40]
    assert called("train", "d", "--data", "hf:a/b=2", "hf:a/b@v2:test=1", *small, "--steps", 2)[0] == 0
    assert len(hub) == 2  # the rows are in the cache
    for other in ("hf:a/b=3", "hf:a/b:test=2"):
        status, _, error = called("train", "d", "--data", other, "hf:a/b@v2:test=1", *small, "--steps", 4)
        assert (status, "began with other settings" in error) == (2, True), other
