"""What the page carries, read back from its text, against NumPy."""

import base64
import html
import html.parser
import json
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import VARIANTS, DTransformerConfig, d_transformer
from algorithms.inside import at, intervene, record
from tests import cases
from tests.own_lines.retention import HYBRID
from tests.run_cases import LETTERS, make_run
from training.data.tokenizers import ByteTokenizer, build_tokenizer
from training.interpretability.page import PageError, content, look, show
from training.interpretability.page.look import Prediction, readable, readable_tokens, token_text
from training.oracle.components import softmax
from training.oracle.transformers import layer_norm_each
from training.runs.directory import Run
from training.runs.trained_model import load_run

pytestmark = pytest.mark.sampled(1, tests=5)

PROMPT, OTHER = "abcabca d", "abcabca.d"


class Scripts(html.parser.HTMLParser):
    """The texts of a page's scripts by id, and every address that it names."""

    def __init__(self, text):
        super().__init__()
        self.texts, self.addresses, self._id = {}, [], None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self._id = attributes.get("id", tag) if tag == "script" else None
        self.addresses += [attributes[name] for name in ("src", "href") if name in attributes]

    def handle_data(self, data):
        if self._id:
            self.texts[self._id] = self.texts.get(self._id, "") + data

    def handle_endtag(self, tag):
        self._id = None


def unpacked(text, table):
    """The arrays, within half a step of their original values."""
    data, found = zlib.decompress(base64.b64decode(text)), {}
    for entry in table:
        shape, step = entry["shape"], entry["step"]
        numbers = np.frombuffer(data, f"<u{entry['bits'] // 8}", int(np.prod(shape)), entry["offset"])
        is_nan = (step != 1) & (numbers == 2 ** entry["bits"] - 1)
        found[entry["name"]] = np.where(is_nan, np.nan, entry["low"] + numbers * step).reshape(shape)
    return found


def read(page):
    """The texts and the numbers of a page."""
    texts = Scripts(page).texts
    data = json.loads(texts["data"])
    return data, unpacked(texts["numbers"], data["arrays"])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return load_run(make_run(tmp_path_factory.mktemp("runs") / "d", "d", L=3))


@pytest.fixture(scope="module")
def found(run):
    return look(run, PROMPT, against=OTHER, name="a <run>")


def forward(theta, x, changes=None):
    """By Algorithm 10: A, the residual stream, what heads and MLPs add, and the logarithms of P."""
    theta = jax.tree.map(lambda a: jnp.asarray(a, float), theta)
    f = intervene(lambda x: d_transformer(x, theta), changes or {})
    P, seen = record(f, "A", "Y@2", "X@3", "X@6", "X@8")(jnp.asarray(x))
    W_o = theta.layers.attention.W_o.reshape(3, 8, 2, 4)  # layer, row, head, row of the head
    heads = np.einsum("ldhm,lhmt->lhdt", W_o, seen["Y@2"])
    stream = [np.asarray(seen["X@3"]), *np.asarray(seen["X@8"])]
    mlps = np.asarray(seen["X@8"]) - np.asarray(seen["X@6"])
    return np.swapaxes(seen["A"], 2, 3), stream, heads, mlps, np.log(P)


@pytest.fixture(scope="module")
def whole(run):
    """What Algorithm 10 computes of the prompt."""
    return forward(run.theta, tokens_of(run, PROMPT))


def unembed(theta, X):
    return np.asarray(theta.W_e, np.float64).T @ layer_norm_each(X, theta.norm)  # W_u is tied


def tokens_of(run, text):
    return np.array(run.tokenizer.framed(run.tokenizer.encode(text), ends=False))


@pytest.mark.end_to_end
def test_the_weights_on_the_page_are_those_of_numpy(whole, found):
    data, arrays = read(found.html())
    A = whole[0]
    assert arrays["A0"].shape == A.shape == (3, 2, 10, 10)
    np.testing.assert_allclose(arrays["A0"], A, atol=1 / 255)
    assert np.abs(arrays["A0"] - A).max() > 1e-6  # they are rounded, so this is what was carried
    assert (data["texts"]["prompt"], data["name"]) == (["[BOS]", *PROMPT.replace(" ", "·")], "a <run>")
    assert "3 layers" in data["facts"]


@pytest.mark.end_to_end
def test_the_predictions_of_each_layer_are_those_of_numpy(run, whole, found):
    data, arrays = read(found.html())
    _, stream, *_ = whole
    for row, X in enumerate(stream):
        P = softmax(unembed(run.theta, X))
        order = np.argsort(-P, axis=0, kind="stable")[:5].T
        np.testing.assert_allclose(arrays["prediction.p"][row], np.take_along_axis(P.T, order, 1), atol=1e-4)
        shown = [[data["words"][int(i)] for i in likeliest] for likeliest in arrays["prediction.tokens"][row]]
        assert shown == [readable_tokens(run.tokenizer, likeliest) for likeliest in order]
    x = tokens_of(run, PROMPT)
    np.testing.assert_allclose(arrays["prediction.follows"][:-1], P[x[1:], np.arange(len(x) - 1)], atol=1e-4)
    assert np.isnan(arrays["prediction.follows"][-1])
    assert data["prediction"]["rows"] == ["embedding", "layer 0", "layer 1", "layer 2"]


@pytest.mark.end_to_end
def test_the_parts_of_the_answer_are_those_of_numpy_and_add_up(run, whole, found):
    _, arrays = read(found.html())
    theta = run.theta
    _, stream, heads, mlps, logits = whole
    answers = logits.argmax(0)
    W_u = np.asarray(theta.W_e, np.float64).T
    centered = W_u - W_u.mean(0)
    direction = centered[answers] * np.asarray(theta.norm.gamma)
    direction -= direction.mean(1, keepdims=True)
    scale = np.sqrt(stream[-1].var(0))
    of = {"heads": heads, "mlp": mlps, "embedding": stream[0]}
    for name, values in of.items():
        parts = np.einsum("td,...dt->...t", direction, values) / scale
        bound = np.abs(parts).max() * 1e-4
        np.testing.assert_allclose(arrays[f"written.{name}"], parts, atol=bound)
    total = arrays["written.heads"].sum((0, 1)) + arrays["written.mlp"].sum(0)
    total = total + arrays["written.embedding"] + arrays["written.rest"]
    columns = np.arange(logits.shape[1])
    np.testing.assert_allclose(total, logits[answers, columns] - logits.mean(0), atol=5e-3)


@pytest.mark.thorough
def test_the_effects_of_patches_are_those_of_numpy(run, found):
    data, arrays = read(found.html())
    x, other = (tokens_of(run, text) for text in (PROMPT, OTHER))
    _, stream, *_, logits = forward(run.theta, x)
    *_, logits_other = forward(run.theta, other)
    answer, alternative = logits[:, -1].argmax(), logits_other[:, -1].argmax()
    assert answer != alternative

    def score(logits):
        return logits[answer, -1] - logits[alternative, -1]

    ends = score(logits), score(logits_other)
    np.testing.assert_allclose(data["patched"]["ends"], ends, atol=1e-3)
    most = np.abs(arrays["patched.tokens"]).max()
    for layer, token in np.ndindex(3, len(x)):
        patch = {at("X@8", layer=layer, token=token): stream[layer + 1][:, token]}
        *_, logits = forward(run.theta, other, patch)
        effect = (score(logits) - ends[1]) / (ends[0] - ends[1])
        np.testing.assert_allclose(arrays["patched.tokens"][layer, token], effect, atol=1e-3 * most)
    np.testing.assert_allclose(arrays["patched.tokens"][-1, -1], 1, atol=1e-3)
    assert data["patched"]["other"] == ["[BOS]", *OTHER.replace(" ", "·")]
    assert not data["patched"]["is_estimate"]


@pytest.mark.end_to_end
def test_patches_of_many_runs_are_estimated_and_the_page_says_so(run, monkeypatch):
    exact = content.patched(run, tokens_of(run, PROMPT), tokens_of(run, OTHER))
    monkeypatch.setattr(content, "MOST_OPERATIONS", 0)
    estimated = content.patched(run, tokens_of(run, PROMPT), tokens_of(run, OTHER))
    assert (exact.is_estimate, estimated.is_estimate) == (False, True)
    differs = tokens_of(run, PROMPT) != tokens_of(run, OTHER)
    first = int(np.argmax(differs))
    np.testing.assert_allclose(estimated.tokens[:, :first], 0, atol=1e-6)  # where both runs are the same
    assert np.abs(estimated.tokens[:, first:]).max() > 1e-2


@pytest.mark.end_to_end
def test_the_page_needs_nothing_else_and_no_text_ends_its_script(tmp_path):
    run = load_run(make_run(tmp_path / "d", "d", ByteTokenizer()))
    found = look(run, "</script><b>&amp;")
    page = found._replace(texts={"prompt": [*found.texts["prompt"][:-1], "</script><script>alert(1)"]}).html()
    scripts = Scripts(page)
    assert set(scripts.texts) == {"data", "numbers", "script"}
    assert json.loads(scripts.texts["data"])["texts"]["prompt"][-1] == "</script><script>alert(1)"
    assert set(scripts.addresses) == {"#attention", "data:,"}
    assert "@import" not in page
    assert "url(" not in page
    assert len(page) < 1_000_000


def random_run(name, **sizes):
    """A run of a variant, with random parameters."""
    sizes = {"N_V": 15, "l_max": 23, "L": 2, "H": 6, "d_e": 12, "d_mlp": 13} | sizes
    config = DTransformerConfig(**sizes, variant=VARIANTS[name])
    return Run(cases.random_theta(config), config, LETTERS, "d")


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("name", "attribution", "composition"),
    [
        ("GEMMA2", "do not add up to its logits (variant.attention.normalize_output", ""),
        ("QWEN3", None, "not bilinear (W.gamma_q: expected None"),
    ],
)
def test_attribution_and_composition_are_refused_where_they_do_not_hold(name, attribution, composition):
    found = look(random_run(name, d_attn=4, d_mid=4), PROMPT)
    assert isinstance(found.written, str) == (attribution is not None)
    assert composition in found.circuits.note
    assert (found.circuits.composition == {}) == bool(composition)
    if attribution:
        assert attribution in found.written
        assert json.loads(Scripts(found.html()).texts["data"])["written"] == found.written


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize(("task", "blocks"), [("e", 1), ("ed", 3), ("classify", 1)])
def test_what_is_shown_of_other_models(task, blocks, tmp_path):
    run = load_run(make_run(tmp_path / task, task))
    found = look(run, "abc def")
    assert (len(found.attention), isinstance(found.prediction, Prediction)) == (blocks, True)
    assert "no head has a separate part" in found.written
    _, arrays = read(found.html())
    for i, attended in enumerate(found.attention):
        np.testing.assert_allclose(arrays[f"A{i}"], attended.A, atol=1 / 255)
        np.testing.assert_allclose(attended.A.sum(-1), 1, atol=1e-5)
        lengths = (len(found.texts[attended.of]), len(found.texts[attended.to]))
        assert attended.A.shape[2:] == lengths


@pytest.mark.end_to_end
def test_an_encoder_is_patched_at_its_mask(tmp_path):
    run = load_run(make_run(tmp_path / "e", "e"))
    found = look(run, "ab[MASK]de", against="ac[MASK]de")
    assert found.texts["prompt"] == ["[BOS]", "a", "b", "[MASK]", "d", "e", "[EOS]"]
    np.testing.assert_allclose(found.patched.tokens[-1, 3], 1, atol=1e-3)
    assert "both prompts need one at the same token" in look(run, "abade", against="acade").patched
    same = content.patched(load_run(make_run(tmp_path / "c", "classify")), np.arange(3), np.arange(3))
    assert same.startswith("Patching is shown for decoders")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("",), "prompt: expected some text, got none"),
        (("a" * 60,), "prompt: expected at most l_max = 40 tokens, got 61; shorten it"),
        (("abc", "abcd"), r"against: expected as many tokens as the prompt, 4, got 5; .* a \| b \| c against"),
        (("abc", "abc"), "against: expected a text other than the prompt, got the same tokens; change a word"),
        (("abc", ""), "against: expected some text, got none"),
    ],
)
def test_a_text_that_cannot_be_shown_is_a_sentence(arguments, says, run):
    with pytest.raises(PageError, match=says):
        look(run, arguments[0], against=(*arguments, None)[1])


def test_a_page_that_would_be_too_large_or_has_no_template_is_refused(run, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="has no chat template"):
        look(run, PROMPT, chat=True)
    with pytest.raises(PageError, match="chat: expected a decoder, got a run of e"):
        look(load_run(make_run(tmp_path / "e", "e")), "abc", chat=True)
    monkeypatch.setattr(content, "MOST_WEIGHTS", 200)
    with pytest.raises(PageError, match="prompt: expected at most 8 tokens, so that all attention weights"):
        look(run, PROMPT)


@pytest.mark.end_to_end
def test_the_command_writes_a_page_and_says_what_is_wrong(tmp_path, called, printed):
    path = make_run(tmp_path / "d", "d")
    out = printed("look_inside", path, "--prompt", "abc", "--out", tmp_path / "out", "--compilation-cache", "off")
    assert out == f"{tmp_path / 'out' / 'page.html'}\n"
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["page.html"]
    for words, says in (
        ([tmp_path / "none", "--prompt", "a"], f"there is no run directory {tmp_path / 'none'}"),
        ([path, "--prompt", ""], "--prompt: expected some text, got none"),
        ([path], "expected --prompt, got none; see --help"),
        ([path, "--prompt", "a", "--out", path / "config.json"], "File exists"),
    ):
        status, _, err = called("look_inside", *words)
        assert (status, says in err) == (2, True)


def test_tokens_are_readable():
    assert readable(" a\n\tb\x07\u00a0\u202e") == "·a⏎⇥b⟨U+0007⟩⟨U+00A0⟩⟨U+202E⟩"
    tokenizer = ByteTokenizer()
    assert [token_text(tokenizer, v) for v in (65, 0xC3, tokenizer.mask_token)] == ["A", "⟨C3⟩", "[MASK]"]
    learned = build_tokenizer("bpe", ["a cat sat on the mat " * 9], N_V=270)  # of bytes, and nothing beyond ASCII
    said = "a 日"
    assert readable_tokens(learned, learned.encode(said))[-4:] == ["·", "⟨E6⟩", "⟨97⟩", "⟨A5⟩"]
    assert learned.decode(learned.encode(said)) == said


def test_what_was_recorded_shows_itself():
    rng = np.random.default_rng(0)
    A = np.tril(rng.uniform(0.1, 1, size=(2, 3, 5, 5)))
    A /= A.sum(-1, keepdims=True)
    cross = rng.dirichlet(np.ones(7), (2, 3, 5))
    recorded = {"A": np.swapaxes(A, 2, 3), "X@8": np.ones((2, 4, 5)), "A/16": np.swapaxes(cross, 2, 3)}
    found = show(recorded, ["a b", 3, 1, 4, "\n"])
    data, arrays = read(found.html())
    np.testing.assert_allclose(arrays["A0"], A, atol=1 / 255)
    np.testing.assert_allclose(arrays["A1"], cross, atol=1 / 255)
    assert data["texts"] == {"sequence of 5": ["a·b", "3", "1", "4", "⏎"], "sequence of 7": [f"·{t}" for t in range(7)]}
    assert [a["title"] for a in data["attention"]] == ["A", "A/16"]
    assert data["prediction"] is data["written"] is data["circuits"] is None
    shown = found._repr_html_()  # in a notebook
    assert shown.startswith("<iframe srcdoc=")
    assert html.unescape(shown.split('"')[1]) == found.html()


@pytest.mark.parametrize(
    ("seen", "says"),
    [
        ([{"X@8": np.ones((2, 3, 4))}], "seen: expected some A, got X@8; record A"),
        ([{}], "seen: expected some A, got nothing"),
        ([{"A": np.ones((2, 3, 4, 2, 4))}], r"one sequence, \[layers, H, l_z, l_x\], got \[2, 3, 4, 2, 4\]"),
        ([{"A/16": np.ones((2, 3, 5, 7))}, "abcdef"], "tokens: expected 5 or 7, as in the attention, got 6"),
    ],
)
def test_what_cannot_be_shown(seen, says):
    with pytest.raises(PageError, match=says):
        show(*seen)


@pytest.mark.end_to_end
def test_layers_without_an_attention(tmp_path):
    """They have no weights; the others are at their numbers."""
    run = load_run(make_run(tmp_path / "d", "d", L=4, variant=HYBRID.to_json()))
    found = look(run, PROMPT, against=OTHER, name="hybrid")
    A = record(d_transformer, "A")(content._tokens(run, "prompt", PROMPT, chat=False), run.theta)[1]["A"]
    shown = found.attention[0].A
    np.testing.assert_allclose(shown[2], np.swapaxes(A[0], 1, 2), rtol=1e-6)
    assert not shown[[0, 1, 3]].any()
    assert found.patched.tokens.shape[0] == found.patched.heads.shape[0] == 4
    assert not found.patched.heads[[0, 1, 3]].any()
    assert "different parameters" in found.circuits.note
    assert set(found.circuits.scores) == {"previous token", "duplicate token", "induction"}
    assert read(found.html())
