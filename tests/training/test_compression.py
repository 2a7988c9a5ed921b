"""The coder against the entropy it should reach, and texts through a model and back."""

import json

import numpy as np
import pytest

from tests.run_cases import BYTES, LETTERS, make_run
from training import compression
from training.compression import CompressionError, Decoder, Encoder, compress, decompress
from training.data.tokenizers import WordTokenizer
from training.generation import Generator
from training.generation.scoring import bits_per_byte
from training.runs.trained_model import load_run

CODE = "0bea0800a87a8cb286359267f6b6baef75a273622150299fd4f3ab0d26d42ee6"
TEXT = "".join(np.random.default_rng(0).choice(list("abcde ."), size=230))


@pytest.fixture(scope="module")
def run_path(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "d", "d", l_max=24)


@pytest.fixture(scope="module")
def generator(run_path):
    model = load_run(run_path)
    return Generator(model.theta, model.config)


def coded(P, symbols, *, at_once):
    encoder = Encoder()
    for i in range(0, len(symbols), at_once):
        encoder.encode(P[i : i + at_once], symbols[i : i + at_once])
    return encoder.finish()


def decoded(P, code, *, at_once):
    decoder = Decoder(code)
    return np.concatenate([decoder.decode(P[i : i + at_once]) for i in range(0, len(P), at_once)])


@pytest.mark.parametrize("concentration", [0.01, 0.3, 100.0])
@pytest.mark.parametrize("n_symbols", [2, 5, 3000])
def test_symbols_come_back_and_cost_their_information(concentration, n_symbols):
    rng = np.random.default_rng(1)
    P = rng.dirichlet(np.full(n_symbols, concentration), size=400)
    symbols = np.array([rng.choice(n_symbols, p=p) for p in P])
    code = coded(P, symbols, at_once=7)
    np.testing.assert_array_equal(decoded(P, code, at_once=11), symbols)
    ideal = -np.log2(P[np.arange(400), symbols]).sum()
    assert 0.99 * ideal - 1 < 8 * len(code) < 1.01 * ideal + 64


def test_the_unlikeliest_symbols_can_be_coded():
    P = np.zeros((120, 50))
    P[:, 0] = 1.0
    symbols = np.array([49, 0, 17, 0, 0, 49] * 20)
    code = coded(P, symbols, at_once=1)
    np.testing.assert_array_equal(decoded(P, code, at_once=1), symbols)
    assert 60 * 23 < 8 * len(code) < 60 * 25 + 64


def test_a_code_is_the_same_in_every_version_of_the_library():
    """What versions 0.4.2 and 0.5.0 gave."""
    P = np.random.default_rng(3).dirichlet(np.full(9, 0.4), size=40)
    assert coded(P, np.arange(40) % 9, at_once=4).hex() == CODE


def test_what_are_no_probabilities_is_refused():
    for wrong in ([np.nan, 1.0], [-1.0, 2.0], [0.0, 0.0]):
        with pytest.raises(ValueError, match="are not numbers"):
            Encoder().encode(np.array([wrong]), np.array([0]))


@pytest.mark.parametrize("text", ["", "a", TEXT])
def test_a_text_comes_back(text, generator):
    code = compress(text, generator, LETTERS)
    assert (decompress(code, generator, LETTERS), compress(text, generator, LETTERS)) == (text, code)


def test_streams_side_by_side_come_back(generator, monkeypatch):
    monkeypatch.setattr(compression, "STREAM_TOKENS", 20)
    code = compress(TEXT, generator, LETTERS)
    assert (compression._streams(len(TEXT)), decompress(code, generator, LETTERS)) == (8, TEXT)


def test_the_size_is_what_the_model_predicts(generator):
    """The windows of the compressor are those that start anew with half of what they had."""
    text = TEXT[:22]  # read in one window, from bos on
    code = compress(text, generator, LETTERS)
    payload = 8 * json.loads(code.partition(b"\n")[0])["bytes"]
    tokens = np.array(LETTERS.encode(text))
    bits = len(text) * bits_per_byte(generator.theta, tokens, len(text), config=generator.config)
    assert payload <= bits + 64  # less: the special tokens, which never come, cost nothing here


def test_a_damaged_file_is_refused(generator):
    code = compress(TEXT, generator, LETTERS)
    header, _, payload = code.partition(b"\n")
    flipped = bytes([payload[0] ^ 64]) + payload[1:]
    for damaged, message in (
        (header + b"\n" + flipped, "is not what was compressed"),
        (code[:-1], "expected .* bytes of code"),
        (b"PK" + code, "not a file that compress.py made"),
        (b"", "not a file that compress.py made"),
        (code.replace(b"compressed 2", b"compressed 1", 1), "of an earlier version .* compress it again"),
    ):
        with pytest.raises(CompressionError, match=message):
            decompress(damaged, generator, LETTERS)


def test_another_model_is_refused(generator):
    other = Generator(generator.theta._replace(W_e=generator.theta.W_e + 1e-3), generator.config)
    with pytest.raises(CompressionError, match="another model"):
        decompress(compress("abc", generator, LETTERS), other, LETTERS)


def test_a_tokenizer_that_loses_something_is_refused(generator):
    words = WordTokenizer(["<unk>", *"abcdefghijk"])
    with pytest.raises(CompressionError, match="does not reproduce the text"):
        compress("nothing known", generator, words)


def test_the_script_compresses_reports_and_decompresses(tmp_path, printed):
    run = make_run(tmp_path / "run", "d", BYTES, l_max=24, L=1)
    text = "Größe, and — more\r\nof it " * 3
    source, packed, result = tmp_path / "in.txt", tmp_path / "packed", tmp_path / "out.txt"
    source.write_bytes(text.encode())
    out = printed("compress", run, "compress", source, packed)
    assert f"{len(text.encode())} bytes of text, {packed.stat().st_size} compressed" in out
    assert f"this model  {8 * packed.stat().st_size / len(text.encode()):.3f}" in out
    assert {"xz", "bzip2"} <= {line.split()[0] for line in out.splitlines()[1:]}
    printed("compress", run, "decompress", packed, result)
    assert result.read_bytes() == source.read_bytes()


@pytest.mark.parametrize("action", ["compress", "decompress"])
def test_the_script_writes_over_nothing_unless_told(tmp_path, called, printed, action):
    run = make_run(tmp_path / "run", "d", BYTES, l_max=24, L=1)
    source, packed, kept = tmp_path / "in.txt", tmp_path / "packed", tmp_path / "kept"
    source.write_text("text")
    printed("compress", run, "compress", source, packed)
    kept.write_text("precious")
    asked = ("compress", run, action, source if action == "compress" else packed, kept)
    sentence = f"{kept}: expected a new file, got an existing one; name another, or add --force"
    assert called(*asked) == (2, "", f"compress.py: {sentence}\n")
    assert kept.read_text() == "precious"
    printed(*asked, "--force")
    assert kept.read_bytes() == (packed.read_bytes() if action == "compress" else b"text")


def test_the_script_refuses_wrong_input(tmp_path, run_path, called):
    encoder = make_run(tmp_path / "e", "e")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "latin").write_bytes("Größe".encode("latin-1"))
    (tmp_path / "text").write_text("abc")
    (tmp_path / "unknown").write_text("abc?")
    for arguments, message in (
        ([encoder, "report", tmp_path / "text"], "expected a decoder's run (task d), got one of task e"),
        ([tmp_path / "none", "report", tmp_path / "text"], "there is no run directory"),
        ([run_path, "report", tmp_path / "missing"], "cannot read"),
        ([run_path, "report", tmp_path / "empty"], "got an empty file"),
        ([run_path, "report", tmp_path / "latin"], "expected UTF-8, got something else at byte 2"),
        ([run_path, "report", tmp_path / "unknown"], "character '?'"),
        ([run_path, "decompress", tmp_path / "text", tmp_path / "out"], "not a file that compress.py made"),
        ([run_path, "compress", tmp_path / "text", tmp_path / "no" / "out"], "cannot write"),
    ):
        status, _, err = called("compress", *arguments)
        assert (status, err.count("\n")) == (2, 1)
        assert message in err
