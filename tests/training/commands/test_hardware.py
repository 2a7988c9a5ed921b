"""The check of a machine's kernels: what it compares with is the oracle's, and a wrong kernel is found."""

import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import algorithms as alg
from algorithms.lines import Attention
from algorithms.ops.attention import dispatch
from tests import cases
from training import oracle
from training.benchmarks import kernels, reference
from training.benchmarks.kernels import Case, checks, error_of, report
from training.commands import benchmark_main, hardware
from training.generation import generate
from training.oracle import lines

OF_BOTH = [[0, 0, 1, 1, 1, 2, 2], [5, 5, 5, 5, 4, 4, 4]]
SMALL = {"H": 4, "H_kv": 2, "l_x": 7, "l_z": 7, "d_attn": 3, "d_mid": 2}
HOLES = (np.random.default_rng(0).random((2, 5, 7)) < 0.5) & (np.arange(7) != 3)
CASES = {
    "a window, documents and padding": lambda: Case("joined", joined(), **SMALL),
    "an array, capped scores and sinks": lambda: Case(
        "array", jax.device_put(HOLES), **SMALL | {"l_z": 5}, cap=0.7, sinks=True
    ),
}


def joined():
    of_both, lengths = jnp.array(OF_BOTH, jnp.int32), jnp.array([0, 6], jnp.int32)
    return alg.banded(3) & alg.documents(of_both) & alg.padding(lengths)


def of_attention(case, s):
    """Ṽ of the oracle, of every head and sequence, as a function of Q, K and V, also in complex arithmetic."""
    masks = case.mask if isinstance(case.mask, jax.Array) else case.mask.dense(case.l_z, case.l_x)
    masks = np.broadcast_to(np.asarray(masks), (case.B, case.l_z, case.l_x))
    where = {"x_positions": range(case.l_x), "z_positions": range(case.l_z), "bidirectional": True}
    d, m = case.d_attn, case.d_mid
    one = SimpleNamespace(W_q=np.eye(d), W_k=np.eye(d, d + m), W_v=np.eye(m, d + m, d))
    W = SimpleNamespace(heads=[one], s=None)

    def of_head(theta, h, b):
        g, sinks = h // (case.H // case.H_kv), [s[h]] if case.sinks else None
        Z = np.concatenate([theta.K[g, :, b], theta.V[g, :, b]])
        of_sinks = SimpleNamespace(**vars(W) | {"s": sinks})
        return lines.attention(0, theta.Q[h, :, b], Z, of_sinks, masks[b], Attention(cap=case.cap), **where)

    return lambda theta: np.stack([[of_head(theta, h, b) for b in range(case.B)] for h in range(case.H)]).swapaxes(1, 2)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", CASES)
def test_expected_values_and_gradients_of_attention_are_the_oracles(name):
    case = CASES[name]()
    rng = np.random.default_rng(1)
    shapes = {"Q": (4, 3, 2, 7), "K": (2, 3, 2, case.l_z), "V": (2, 2, 2, case.l_z)}
    inputs, s = {name: rng.normal(size=n) for name, n in shapes.items()}, rng.normal(size=4)
    E = rng.normal(size=(4, 2, 2, 7))
    V_tilde, theta = of_attention(case, s), SimpleNamespace(**inputs)
    expected = kernels.of_oracle(case, inputs, s, E)
    np.testing.assert_allclose(expected[""], V_tilde(theta), rtol=1e-12, atol=1e-14)
    gradient = oracle.complex_step_gradient(lambda theta: (E * V_tilde(theta)).sum(), theta)
    for name in "QKV":
        np.testing.assert_allclose(expected[name], getattr(gradient, name), rtol=1e-10, atol=1e-13, err_msg=name)


def of_the_loss(theta, x, weights):
    P = oracle.softmax(theta.W_u @ theta.X)
    return -sum(w * np.log(P[v, t]) for t, (v, w) in enumerate(zip(x, weights, strict=True)))


def test_expected_gradients_of_the_loss_and_of_experts_are_the_oracles():
    loss = kernels._of_loss(N_V=7, d_e=3, l=5)
    x, weights = (inside(loss.function)[name] for name in ("x", "weights"))
    value, theta = loss.expected(), SimpleNamespace(**loss.inputs)
    np.testing.assert_allclose(value[""], of_the_loss(theta, x, weights), rtol=1e-12)
    gradient = oracle.complex_step_gradient(lambda theta: of_the_loss(theta, x, weights), theta)
    experts = kernels._of_experts(R=9, n=5, d_in=3, d_out=2)
    group, theta = inside(experts.function)["group"], SimpleNamespace(**experts.inputs)

    def products(theta):
        return np.stack([theta.W[g] @ X if g < 5 else np.zeros(2) for g, X in zip(group, theta.X.T, strict=True)], -1)

    np.testing.assert_allclose(experts.expected()[""], products(theta), rtol=1e-12)
    both = vars(oracle.complex_step_gradient(lambda theta: (experts.E * products(theta)).sum(), theta))
    for name, actual, exact in (
        *((name, value[name], vars(gradient)[name]) for name in ("X", "W_u")),
        *((name, experts.expected()[name], both[name]) for name in ("X", "W")),
    ):
        np.testing.assert_allclose(actual, exact, rtol=1e-10, atol=1e-13, err_msg=name)


def inside(function):
    """What a function closes over, by name."""
    return dict(zip(function.__code__.co_freevars, (cell.cell_contents for cell in function.__closure__), strict=True))


RULE = dispatch.RULES["strips"]


@jax.custom_vjp
def forgets_a_gradient(K):
    return K


forgets_a_gradient.defvjp(lambda K: (K, None), lambda _, dK: (dK.at[..., -1].set(0),))

WRONG = {
    "a value": (lambda *a: RULE(*a).at[..., -1].multiply(1.5), "expected at most 0.0001 of error, got the values by"),
    "a gradient": (lambda Q, K, V, scores: RULE(Q, forgets_a_gradient(K), V, scores), "got ∂F/∂K by"),
    "not a number": (lambda *a: RULE(*a).at[0, 0, 0, 0].set(jnp.nan), "the values by inf"),
    "an error": (lambda *a: a[0] @ a[1], "expected the oracle's values, but it raised ValueError"),
}


def planted(monkeypatch, rule):
    monkeypatch.setitem(dispatch.RULES, "strips", rule)
    case = Case("causal", alg.UNIDIRECTIONAL, **SMALL)
    check = kernels._of_attention(case, ("dense", "strips"))
    monkeypatch.setattr(kernels, "checks", lambda _: [check])
    return check


@pytest.mark.sampled(1)
@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_kernel_is_found_and_no_other(what, monkeypatch):
    rule, says = WRONG[what]
    results = list(kernels.found(planted(monkeypatch, rule), "cpu"))
    wrong = {(result.kernel, result.dtype): result.wrong for result in results if result.wrong}
    assert set(wrong) == {("strips", "float32"), ("strips", "bfloat16")}
    assert says in wrong["strips", "float32"]
    assert "WRONG: strips in float32, causal: expected" in report(results)


def test_a_kernel_that_refuses_is_not_wrong():
    check = kernels._of_attention(Case("causal", alg.UNIDIRECTIONAL, **SMALL), ("cudnn",))
    results = list(kernels.found(check, "gpu"))
    assert not any(result.wrong for result in results)
    text = report(results)
    assert "| `cudnn` | float16 | 0 of 1 | - | - | - | 0 |" in text
    assert "`cudnn` in bfloat16 refuses: it runs on an NVIDIA GPU, and the platform is cpu" in text


def test_an_error_is_measured_for_each_token():
    exact = np.stack([np.full(4, 3.0), np.full(4, 4.0)])  # of norm 5
    assert error_of(exact + np.outer([0.05, 0], [0, 0, 0, 1]), exact) == pytest.approx(0.01)
    assert error_of(exact * [1, 1, 1, np.nan], exact) == np.inf
    assert {len(checks(platform)) for platform in ("gpu", "tpu")} == {len(kernels.cases("gpu")) + 2}
    assert {check.name for check in checks("cpu")} >= {"products with experts", "the loss"}


@pytest.mark.end_to_end
@pytest.mark.parametrize("wrong", [False, True], ids=["right", "wrong"])
def test_the_command_checks_measures_and_writes(wrong, monkeypatch, tmp_path, capfd):
    monkeypatch.chdir(tmp_path)
    if wrong:
        planted(monkeypatch, WRONG["a gradient"][0])
        for part in ("step", "attentions", "decoding", "training", "serving"):
            monkeypatch.setattr(hardware, part, lambda *_: "")
    assert benchmark_main(["hardware", "--rounds=2"]) == int(wrong)
    out, err = capfd.readouterr()
    text = (tmp_path / "build" / "hardware.md").read_text("utf-8")
    assert ("benchmark.py" in err or "strips in float32" in err) == wrong
    if wrong:
        return
    parts = {
        "Kernels",
        "Training step",
        "Training step of a large batch",
        "Attention",
        "Decoding",
        "Training",
        "Serving",
    }
    for written in (text, out):
        assert parts <= {*re.findall(r"\*\*(.+)\.\*\*", written)}
    assert "| `blockwise` | bfloat16 | 2 of 2 |" in text
    assert text.count("| this library, packed documents, unrolled layers |") == 2
    assert text.count("| a plain GPT-2 in PyTorch, windows |") == 2
    assert "Not measured" not in text
    assert "Left out" not in text


@pytest.mark.end_to_end
def test_a_part_that_fails_or_lacks_a_package_leaves_the_others(monkeypatch, tmp_path, capfd):
    def fails(*_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory\nwhile allocating")

    def lacks(*_):
        raise ModuleNotFoundError("No module named 'uvicorn'", name="uvicorn")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hardware, "step", fails)
    monkeypatch.setattr(hardware, "decoding", lambda *_: "measured")
    monkeypatch.setattr(hardware, "serving", lacks)
    assert benchmark_main(["hardware", "--rounds=2", "--parts=step,decoding,serving"]) == 1
    text = (tmp_path / "build" / "hardware.md").read_text("utf-8")
    assert "**Training step.** Not measured: JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory\n" in text
    assert "**Decoding.** measured" in text
    assert "**Serving.** Left out: uvicorn is not installed." in text
    assert re.findall(r"\*\*(.+)\.\*\*", text) == ["Training step", "Decoding", "Serving"]
    assert "hardware: training step: not measured: JaxRuntimeError" in capfd.readouterr().err


@pytest.mark.end_to_end
@pytest.mark.usefixtures("x32")
def test_plain_jaxs_decoder_continues_as_the_library():
    sizes = {"N_V": 19, "l_max": 16, "L": 2, "H": 2, "d_e": 8, "d_mlp": 12}
    config = alg.DTransformerConfig(**sizes, variant=alg.GPT2)
    theta = cases.random_theta(config, dtype="float32")
    layers, W, mlp = theta.layers, theta.layers.attention, theta.layers.mlp
    names = {"qkv": ("W_q", "W_k", "W_v"), "b_qkv": ("b_q", "b_k", "b_v")}
    of_heads = {
        name: np.concatenate([np.asarray(getattr(W.heads, a)).reshape(2, 8, -1) for a in parts], axis=1).swapaxes(1, 2)
        for name, parts in names.items()
    }
    of_layers = of_heads | {"b_qkv": of_heads["b_qkv"][:, 0], "out": W.W_o.swapaxes(1, 2), "b_out": W.b_o}
    of_layers |= {"up": mlp.W_mlp1.swapaxes(1, 2), "b_up": mlp.b_mlp1}
    of_layers |= {"down": mlp.W_mlp2.swapaxes(1, 2), "b_down": mlp.b_mlp2}
    of_layers |= {f"norm{i}": np.stack(getattr(layers, f"norm{i}"), axis=1) for i in (1, 2)}
    theirs = {"W_e": theta.W_e.T, "W_p": theta.W_p.T, "norm": np.stack(theta.norm), "layers": of_layers}
    theirs = jax.tree.map(jnp.asarray, theirs)
    assert jax.tree.map(jnp.shape, theirs) == jax.tree.map(jnp.shape, reference.parameters(sizes))
    x = jnp.asarray(np.random.default_rng(0).integers(19, size=(3, 5)))
    expected = generate(theta, x, lengths=np.full(3, 5), config=config, l_gen=9, tau=0.0, key=jax.random.key(0))
    with reference.in_use():
        np.testing.assert_array_equal(reference.generated(theirs, x, 9, H=2), expected)
        np.testing.assert_array_equal(reference.generated(theirs, x, 1, H=2), expected[:, :1])
