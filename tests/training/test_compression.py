"""The coder against the entropy it should reach, and texts through a model and back."""

import json

import numpy as np
import pytest

from tests.run_cases import BYTES, LETTERS, make_run
from training import commands, compression
from training.compression import CompressionError, compress, decompress
from training.compression.arithmetic_coding import TOTAL, Decoder, Encoder, counts
from training.data.tokenizers import WordTokenizer
from training.generation import Generator
from training.generation.scoring import bits_per_byte
from training.runs.directory import load_run

TEXT = "".join(np.random.default_rng(0).choice(list("abcde ."), size=230))


@pytest.fixture(scope="module")
def run_path(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "d", "d", l_max=24)


@pytest.fixture(scope="module")
def generator(run_path):
    model = load_run(run_path)
    return Generator(model.theta, model.config)


def coded(cumulatives, symbols):
    encoder = Encoder()
    for cumulative, symbol in zip(cumulatives, symbols, strict=True):
        encoder.encode(cumulative, symbol)
    return encoder.finish()


@pytest.mark.parametrize("concentration", [0.01, 0.3, 100.0])
@pytest.mark.parametrize("n_symbols", [2, 5, 3000])
def test_symbols_come_back_and_cost_their_information(concentration, n_symbols):
    rng = np.random.default_rng(1)
    n = 400
    P = rng.dirichlet(np.full(n_symbols, concentration), size=n)
    symbols = [int(rng.choice(n_symbols, p=p)) for p in P]
    cumulatives = [counts(p) for p in P]
    code = coded(cumulatives, symbols)
    decoder = Decoder(code)
    assert [decoder.decode(c) for c in cumulatives] == symbols
    information = sum(-np.log2((c[s + 1] - c[s]) / TOTAL) for c, s in zip(cumulatives, symbols, strict=True))
    assert information <= 8 * len(code) <= information + 10
    ideal = sum(-np.log2(p[s]) for p, s in zip(P, symbols, strict=True))
    assert abs(information - ideal) < 0.01 * ideal + 1


def test_the_unlikeliest_symbols_can_be_coded():
    p = np.zeros(50)
    p[0] = 1.0
    symbols = [49, 0, 17, 0, 0, 49] * 20
    code = coded([counts(p)] * len(symbols), symbols)
    decoder = Decoder(code)
    assert [decoder.decode(counts(p)) for _ in symbols] == symbols
    assert 60 * 23 < 8 * len(code) < 60 * 25


def test_counts_are_positive_and_complete():
    c = counts(np.array([0.5, 0.0, 0.25, 0.25]))
    assert (c[0], c[-1]) == (0, TOTAL)
    assert (np.diff(c) >= 1).all()
    np.testing.assert_allclose(np.diff(c) / TOTAL, [0.5, 0, 0.25, 0.25], atol=1e-6)
    for wrong in ([np.nan, 1.0], [-1.0, 2.0], [0.0, 0.0]):
        with pytest.raises(ValueError, match="are no numbers"):
            counts(np.array(wrong))


@pytest.mark.parametrize("text", ["", "a", TEXT])
def test_a_text_comes_back(text, generator):
    code = compress(text, generator, LETTERS)
    assert decompress(code, generator, LETTERS) == text
    assert compress(text, generator, LETTERS) == code


def test_streams_side_by_side_come_back(generator, monkeypatch):
    monkeypatch.setattr(compression, "STREAM_TOKENS", 20)
    code = compress(TEXT, generator, LETTERS)
    assert len(json.loads(code.partition(b"\n")[0])["bytes"]) == 8
    assert decompress(code, generator, LETTERS) == TEXT


def test_the_size_is_what_the_model_predicts(generator):
    """The windows of the compressor are those that start anew with half of what they had."""
    text = TEXT[:22]  # read in one window, from bos on
    code = compress(text, generator, LETTERS)
    payload = 8 * json.loads(code.partition(b"\n")[0])["bytes"][0]
    tokens = np.array(LETTERS.encode(text))
    bits = len(text) * bits_per_byte(generator.theta, tokens, len(text), config=generator.config)
    assert payload <= bits + 8  # less: the special tokens, which never come, cost nothing here


def test_a_damaged_file_is_refused(generator):
    code = compress(TEXT, generator, LETTERS)
    header, _, payload = code.partition(b"\n")
    flipped = bytes([payload[0] ^ 64]) + payload[1:]
    for damaged, message in (
        (header + b"\n" + flipped, "is not what was compressed"),
        (code[:-1], "expected .* bytes of code"),
        (b"PK" + code, "no text that was compressed"),
        (b"", "no text that was compressed"),
    ):
        with pytest.raises(CompressionError, match=message):
            decompress(damaged, generator, LETTERS)


def test_another_model_is_refused(generator):
    other = Generator(generator.theta._replace(W_e=generator.theta.W_e + 1e-3), generator.config)
    with pytest.raises(CompressionError, match="another model"):
        decompress(compress("abc", generator, LETTERS), other, LETTERS)


def test_a_tokenizer_that_loses_something_is_refused(generator):
    words = WordTokenizer(["<unk>", *"abcdefghijk"])
    with pytest.raises(CompressionError, match="does not give the text back"):
        compress("nothing known", generator, words)


def test_the_script_compresses_reports_and_decompresses(tmp_path, capsys):
    run = make_run(tmp_path / "run", "d", BYTES, l_max=24, L=1)
    text = "Größe, and — more\r\nof it " * 3
    source, packed, result = tmp_path / "in.txt", tmp_path / "packed", tmp_path / "out.txt"
    source.write_bytes(text.encode())
    assert commands.compress_main([str(run), "compress", str(source), str(packed)]) == 0
    out = capsys.readouterr().out
    assert f"{len(text.encode())} bytes of text, {packed.stat().st_size} compressed" in out
    assert f"this model  {8 * packed.stat().st_size / len(text.encode()):.3f}" in out
    assert {"xz", "bzip2"} <= {line.split()[0] for line in out.splitlines()[1:]}
    assert commands.compress_main([str(run), "decompress", str(packed), str(result)]) == 0
    assert result.read_bytes() == source.read_bytes()


def test_the_script_refuses_wrong_input(tmp_path, run_path, capsys):
    encoder = make_run(tmp_path / "e", "e")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "latin").write_bytes("Größe".encode("latin-1"))
    (tmp_path / "text").write_text("abc")
    (tmp_path / "unknown").write_text("abc?")
    for arguments, message in (
        ([encoder, "report", tmp_path / "text"], "needs a decoder"),
        ([tmp_path / "none", "report", tmp_path / "text"], "there is no run directory"),
        ([run_path, "report", tmp_path / "missing"], "cannot read"),
        ([run_path, "report", tmp_path / "empty"], "is empty"),
        ([run_path, "report", tmp_path / "latin"], "not UTF-8 at byte 2"),
        ([run_path, "report", tmp_path / "unknown"], "character '?'"),
        ([run_path, "decompress", tmp_path / "text", tmp_path / "out"], "no text that was compressed"),
        ([run_path, "compress", tmp_path / "text", tmp_path / "no" / "out"], "cannot write"),
    ):
        assert commands.compress_main([str(a) for a in arguments]) == 2
        err = capsys.readouterr().err
        assert message in err
        assert err.count("\n") == 1
