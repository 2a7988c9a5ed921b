"""The oracle against values worked out by hand.

The transformers' cases live in two dimensions, (a, b), lifted to d_e = 4 as (a, -a, b, -b): such a vector has
mean 0 and variance (a^2 + b^2)/2, which is 25 for (7, 1), so that the head can do the normalizations.
Each comment states the values after the line of the pseudocode it names.
"""

import math
from collections import namedtuple
from types import SimpleNamespace

import numpy as np
import pytest

from training import oracle

LN2 = math.log(2)
PHI = 0.841344746068542948585  # probability that a standard normal variable is below 1
LIFT = np.array([[1, 0], [-1, 0], [0, 1], [0, -1]], dtype=float)  # (a, b) -> (a, -a, b, -b)
READ = np.array([[1, 0, 0, 0], [0, 0, 1, 0]], dtype=float)  # (a, -a, b, -b) -> (a, b)
LOGITS = np.array([[1, 0], [0, 1], [0, 0], [1, 1]], dtype=float)  # (a, b) -> (a, b, 0, a + b)


def close(actual, expected):
    np.testing.assert_allclose(actual, np.asarray(expected), rtol=1e-14, atol=1e-14)


def normalized(a, b):
    s = math.sqrt((a * a + b * b) / 2)
    return a / s, b / s


def distribution(*logits):
    total = sum(math.exp(a) for a in logits)
    return [math.exp(a) / total for a in logits]


def head(W_q, b_q, W_k, b_k, W_v, b_v):
    names = ("W_q", "b_q", "W_k", "b_k", "W_v", "b_v")
    return SimpleNamespace(
        **{n: np.array(W, dtype=float) for n, W in zip(names, (W_q, b_q, W_k, b_k, W_v, b_v), strict=True)}
    )


def lifted_attention(W_q, b_q, W_k, W_v, W_o, b_o):
    """One head with d_attn = d_mid = 1, given by its vectors in two dimensions."""
    one_head = head([W_q @ READ], [b_q], [W_k @ READ], [0], [W_v @ READ], [0])
    return SimpleNamespace(heads=[one_head], W_o=LIFT @ np.array([W_o]).T, b_o=LIFT @ np.array(b_o))


def lifted_norm(gamma, beta):
    return SimpleNamespace(gamma=np.repeat(np.array(gamma, dtype=float), 2), beta=LIFT @ np.array(beta))


def lifted_mlp(W_mlp1, b_mlp1, W_mlp2, b_mlp2):
    return SimpleNamespace(
        W_mlp1=np.array(W_mlp1) @ READ,
        b_mlp1=np.array(b_mlp1, dtype=float),
        W_mlp2=LIFT @ np.array(W_mlp2, dtype=float),
        b_mlp2=LIFT @ np.array(b_mlp2),
    )


def embeddings():
    """Embeddings with which the tokens 2 and 0 at the positions 0 and 1 become (7, 1) and (1, 7)."""
    W_e = np.array([[1, 0, 4, 0], [3, 0, 0, 0]], dtype=float)
    W_p = np.array([[3, 0], [1, 4]], dtype=float)
    return {"W_e": LIFT @ W_e, "W_p": LIFT @ W_p}


def d_case():
    """Return a decoder-only model and the last activations (a, b) for the sequence [2, 0]."""
    layer = SimpleNamespace(
        norm1=lifted_norm((5, 5), (0, 1)),
        attention=lifted_attention(np.zeros(2), 1, np.array([LN2 / 6, 0]), np.array([0, 1]), (3, -2), (-6, 2)),
        norm2=lifted_norm((5, 5), (-6, 0)),
        mlp=lifted_mlp(np.eye(2), (0, 0), np.eye(2), (-7, 0)),
    )
    theta = SimpleNamespace(**embeddings(), layers=[layer], norm=lifted_norm((2, 1), (0, 0.5)), W_u=LOGITS @ READ)
    # line 5: (7, 2), (1, 8); scores of position 1 differ by ln 2, so it attends with weights 2/3, 1/3
    # line 6: values 2 and (2 * 2 + 8)/3 = 4, hence (7, -1), (7, 1); line 7: (1, -1), (1, 1)
    # line 8: GELU(1) = PHI and GELU(-1) = PHI - 1, hence (PHI, PHI - 2), (PHI, PHI + 1)
    X = [normalized(PHI, PHI - 2), normalized(PHI, PHI + 1)]
    return theta, [(2 * a, b + 0.5) for a, b in X]


def encoder_layer(b_mlp2, gamma2):
    # line 5: scores differ by ln 2, values 1 and 7, so that all attend to (2 * 1 + 7)/3 = 3:
    #         (7 + 3 - 11, 1 - 3 - 5) = (-1, -7) and (1 + 3 - 11, 7 - 3 - 5) = (-7, -1)
    # line 6: (-1, -1), (-7, 5); line 7: hidden units 1/3 + 2/3 = 1 and -5/3 + 2/3 = -1
    return SimpleNamespace(
        attention=lifted_attention(np.zeros(2), 1, np.array([LN2 / 6, 0]), np.array([0, 1]), (1, -1), (-11, -5)),
        norm1=lifted_norm((5, 5), (0, 6)),
        mlp=lifted_mlp([[0, -1 / 3]], [2 / 3], [[1], [2]], b_mlp2),
        norm2=lifted_norm(gamma2, (0, 0)),
    )


def e_case():
    """Return an encoder-only model and its distributions for the sequence [2, 0]."""
    theta = SimpleNamespace(
        **embeddings(),
        layers=[encoder_layer((1, 0), (1, 1))],
        W_f=np.array([[1, 0], [0, 1], [0, 0]]) @ READ,
        b_f=np.array([0, 0.5, 0]),
        norm=SimpleNamespace(gamma=np.array([1.0, 2, 3]), beta=np.array([0, 0, 1.0])),
        W_u=np.array([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0]]),
    )
    columns = []
    # line 7: (-1 + PHI + 1, -1 + 2 PHI) and (-7 + (PHI - 1) + 1, 5 + 2 (PHI - 1))
    for a, b in (normalized(PHI, 2 * PHI - 1), normalized(PHI - 7, 2 * PHI + 3)):
        f = [u * (1 + math.erf(u / math.sqrt(2))) / 2 for u in (a, b + 0.5)]
        m = (f[0] + f[1]) / 3
        s = math.sqrt(((f[0] - m) ** 2 + (f[1] - m) ** 2 + m**2) / 3)
        x = ((f[0] - m) / s, 2 * (f[1] - m) / s, -3 * m / s + 1)
        columns.append(distribution(*x, x[0] + x[1]))
    return theta, np.array(columns).T


def ed_case():
    """Return an encoder-decoder model and the last activations (a, b) for z = x = [2, 0]."""
    layer = SimpleNamespace(
        self_attention=lifted_attention(np.zeros(2), 1, np.array([LN2 / 6, 0]), np.array([0, 1]), (3, -4), (-3, 4)),
        norm3=lifted_norm((5, 5), (0, 1)),
        cross_attention=lifted_attention(
            np.array([0, 0.5]), 1, np.array([LN2 / 7, 0]), np.array([0, 1]), (1, 1), (1, -3.5)
        ),
        norm4=lifted_norm((1, 1), (0, 0)),
        mlp=lifted_mlp([[0, 1]], [0], [[2], [3]], (0, 1)),
        norm5=lifted_norm((2, 1), (0, 0.5)),
    )
    theta = SimpleNamespace(**embeddings(), encoder=[encoder_layer((7, 0), (5, 5))], decoder=[layer], W_u=LOGITS @ READ)
    # line 7: ReLU 1 and 0, hence (-1 + 1 + 7, -1 + 2) = (7, 1), (-7 + 7, 5) = (0, 5)
    # line 8: (7, 1), (0, 5 sqrt 2)
    # line 14: values 1 and (2 * 1 + 7)/3 = 3, hence (7, 1), (7, -1); line 15: (7, 2), (7, 0)
    # line 16: queries 2 and 1, keys ln 2 and 0: weights 4/5, 1/5 and 2/3, 1/3 of the values 1, 5 sqrt 2
    v0, v1 = (4 + 5 * math.sqrt(2)) / 5, (2 + 5 * math.sqrt(2)) / 3
    (a0, b0), (a1, b1) = normalized(8 + v0, v0 - 1.5), normalized(8 + v1, v1 - 3.5)
    assert b0 > 0 > b1  # the ReLU of line 18 lets the first pass, and not the second
    X = [normalized(a0 + 2 * b0, b0 + 3 * b0 + 1), normalized(a1, b1 + 1)]
    return theta, [(2 * a, b + 0.5) for a, b in X]


def distributions(activations):
    return np.array([distribution(a, b, 0, a + b) for a, b in activations]).T


def test_embeddings_pick_columns():
    W = np.array([[1.0, 2, 3], [4, 5, 6]])
    close(oracle.token_embedding(2, W), [3, 6])
    close(oracle.positional_embedding(1, W), [2, 5])


def test_sinusoidal_positional_embedding_starts_at_position_one():
    W_p = oracle.sinusoidal_positional_embedding(4, 16)  # 16^(2/4) = 4, 16^(4/4) = 16
    assert W_p.shape == (4, 16)
    close(W_p[:, 0], [math.sin(1 / 4), math.cos(1 / 4), math.sin(1 / 16), math.cos(1 / 16)])
    close(W_p[:, 7], [math.sin(2), math.cos(2), math.sin(0.5), math.cos(0.5)])
    with pytest.raises(ValueError, match="even"):
        oracle.sinusoidal_positional_embedding(3, 16)


def test_softmax_is_over_columns():
    A = np.log([[1.0, 2], [3, 2]])
    close(oracle.softmax(A), [[0.25, 0.5], [0.75, 0.5]])
    close(oracle.softmax(A[:, 0]), [0.25, 0.75])
    close(oracle.unembedding(np.array([1.0, 2]), np.log([[2.0, 1], [1, 2]])), [2 / 6, 4 / 6])


def test_relu_and_gelu():
    close(oracle.relu(np.array([-2.0, 0, 3])), [0, 0, 3])
    close(oracle.relu(np.array([-2 + 1j, 3 + 1j])), [0, 3 + 1j])
    close(oracle.gelu(np.array([-1.0, 0, 1])), [PHI - 1, 0, PHI])
    close(oracle.gelu(np.array([2.0])), [2 * 0.977249868051820793])


@pytest.mark.parametrize("x", [-6.0, -3.0, -1.0, -1e-3, 0.0, 1e-3, 0.5, 1.0, 2.5, 6.0])
def test_gelu_has_an_accurate_complex_step(x):
    derivative = np.imag(oracle.gelu(np.array(x + 1e-30j))) / 1e-30
    cumulative, density = math.erfc(-x / math.sqrt(2)) / 2, math.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    assert derivative == pytest.approx(cumulative + x * density, rel=1e-12, abs=1e-15)


def attention_case():
    """A head whose weights are 2^(t_z Q), for Q = 1 and 0, and whose values are (t_z, 3 t_z + 1)."""
    W_qkv = head([[2], [0], [0], [0]], [2, 0, 0, 0], [[LN2], [0], [0], [0]], [LN2, 0, 0, 0], [[1], [3]], [1, 4])
    return np.array([[0.0, -1]]), np.array([[-1.0, 0, 1]]), W_qkv


def test_attention():
    X, Z, W_qkv = attention_case()
    V_tilde = oracle.attention(X, Z, W_qkv, np.ones((3, 2), dtype=bool))
    close(V_tilde, [[10 / 7, 1], [37 / 7, 4]])  # weights (1, 2, 4)/7 and (1, 1, 1)/3
    for t in range(2):
        close(oracle.single_query_attention(X[:, t], Z, W_qkv), V_tilde[:, t])


def test_attention_attends_where_the_mask_is_true_and_nowhere_else():
    X, Z, W_qkv = attention_case()
    mask = np.array([[True, False], [False, False], [True, False]])
    close(oracle.attention(X, Z, W_qkv, mask), [[8 / 5, 0], [29 / 5, 0]])  # weights (1, 0, 4)/5 and none
    with pytest.raises(ValueError, match="mask"):
        oracle.attention(X, Z, W_qkv, mask.T)


def test_masked_attention_has_a_derivative():
    X, Z, W_qkv = attention_case()
    mask = np.array([[True, False], [False, False], [True, True]])
    gradient = oracle.complex_step_gradient(lambda W: oracle.attention(X, Z, W, mask)[0, 0], W_qkv)
    close(gradient.b_q[0], 0.32 * LN2)  # variance 16/25 of t_z under the weights (1, 0, 4)/5, times ln 2 / sqrt 4
    close(gradient.W_v, [[8 / 5 - 1], [0]])
    close(gradient.b_v, [1, 0])


def test_mh_attention_stacks_the_heads():
    X, Z, W_qkv = attention_case()
    second = head([[0]], [0], [[0]], [0], [[1]], [10])  # uniform weights, one value: the mean of Z, plus 10
    W = SimpleNamespace(heads=[W_qkv, second], W_o=np.array([[1.0, 0, 0], [0, 1, 2]]), b_o=np.array([100.0, 200]))
    V_tilde = oracle.mh_attention(X, Z, W, np.ones((3, 2), dtype=bool))
    close(V_tilde, [[100 + 10 / 7, 101], [200 + 37 / 7 + 20, 224]])


def test_layer_norm_and_rms_norm():
    e, gamma = np.array([1.0, 2, 3, 6]), np.array([1.0, 2, 3, 4])
    s = math.sqrt(3.5)  # mean 3, variance (4 + 1 + 0 + 9)/4
    close(oracle.layer_norm(e, gamma, np.array([0.0, 1, 2, 3])), [-2 / s, -2 / s + 1, 2, 12 / s + 3])
    close(oracle.rms_norm(np.array([1.0, 7]), np.array([1.0, 10])), [0.2, 14])


def test_layer_norm_has_the_right_derivative():
    theta = SimpleNamespace(e=np.array([7.0, -7, 1, -1]))
    one, zero = np.ones(4), np.zeros(4)
    gradient = oracle.complex_step_gradient(lambda p: oracle.layer_norm(p.e, one, zero)[0], theta)
    close(gradient.e, [0.052, 0.048, -0.064, -0.036])  # (delta_0j - 1/4 - e_hat_0 e_hat_j/4)/5


def test_the_transformers():
    theta, activations = d_case()
    close(oracle.d_transformer([2, 0], theta), distributions(activations))
    close(oracle.d_transformer([2], theta), distributions(activations[:1]))
    theta, P = e_case()
    close(oracle.e_transformer([2, 0], theta), P)
    theta, activations = ed_case()
    close(oracle.ed_transformer([2, 0], [2, 0], theta), distributions(activations))
    close(oracle.ed_transformer([2, 0], [2], theta), distributions(activations[:1]))


def test_an_absent_unembedding_matrix_is_the_embedding_matrix_transposed():
    theta, activations = d_case()
    theta.W_e = (LOGITS @ READ).T
    theta.W_p = LIFT @ np.array([[7.0], [1]]) - theta.W_e[:, [2]]
    theta.W_u = None
    close(oracle.d_transformer([2], theta), distributions(activations[:1]))


def test_losses_sum_over_the_predicted_positions():
    theta, activations = d_case()
    close(oracle.d_loss([2, 0], theta), -math.log(distributions(activations)[0, 0]))
    theta, activations = ed_case()
    close(oracle.ed_loss([2, 0], [2, 0], theta), -math.log(distributions(activations)[0, 0]))
    theta, P = e_case()
    theta.W_e[:, 1] = theta.W_e[:, 2]  # mask_token looks like token 2
    close(oracle.e_loss([3, 0], [1, 0], theta), -math.log(P[3, 0]))
    close(oracle.e_loss([3, 0], [2, 0], theta), 0)


@pytest.mark.parametrize("length", [1, 2])
def test_losses_of_uniform_distributions(length):
    x = [2, 0][:length]
    for theta, loss in ((d_case()[0], oracle.d_loss), (ed_case()[0], lambda x, p: oracle.ed_loss([0], x, p))):
        theta.W_u = np.zeros((4, 4))
        close(loss(x, theta), (length - 1) * math.log(4))
    theta = e_case()[0]
    theta.W_u = np.zeros((4, 3))
    close(oracle.e_loss(x, [1, 1][:length], theta), length * math.log(4))


def assert_only_the_unembedding_moved(theta_hat, theta, W_u):
    trained, initial = oracle.flatten(theta_hat), oracle.flatten(theta)
    assert trained.keys() == initial.keys()
    close(trained.pop("W_u"), W_u)
    for path, W in trained.items():
        np.testing.assert_array_equal(W, initial[path], err_msg=path)


@pytest.mark.parametrize(
    ("case", "training", "sequences"), [(d_case, oracle.d_training, 1), (ed_case, oracle.ed_training, 2)]
)
def test_first_step_from_a_zero_unembedding(case, training, sequences):
    """Where W_u = 0, P is 1/4, and only W_u has a gradient: (P[:, t] - onehot(target)) X[:, t]^T, summed."""
    theta, activations = case()
    theta.W_u = np.zeros((4, 4))
    W_u = 0.1 * np.outer([0.75, -0.25, -0.25, -0.25], LIFT @ activations[0])
    assert_only_the_unembedding_moved(training(*[[[2, 0]]] * sequences, theta, 1, 0.1), theta, W_u)


def test_training_steps_follow_one_another():
    theta = d_case()[0]
    x = [[2, 0], [2, 3]]
    stepwise = theta
    for sequence in (x[0], x[1], x[0], x[1]):
        stepwise = oracle.d_training([sequence], stepwise, 1, 0.1)
    trained = oracle.flatten(oracle.d_training(x, theta, 2, 0.1))
    for path, W in oracle.flatten(stepwise).items():
        np.testing.assert_array_equal(trained[path], W, err_msg=path)
    assert not np.allclose(trained["W_e"], theta.W_e)


def test_e_training_masks_what_it_is_told_to():
    theta = e_case()[0]
    theta.W_u = np.zeros((4, 3))
    nothing_masked = oracle.e_training([[2, 0]], theta, 1, 0.1, [[[False, False]]])
    assert_only_the_unembedding_moved(nothing_masked, theta, theta.W_u)
    # mask_token (1) is embedded as token 2 is, so the activations are those of [2, 0], known by their logits
    theta.W_e[:, 1] = theta.W_e[:, 2]
    P = e_case()[1]
    X_0 = np.log(P[:3, 0] / P[3, 0])  # logits but for a constant, which X_0[0] + X_0[1] - (X_0[0] + X_0[1]) fixes
    X_0 = X_0 - (X_0[0] + X_0[1])
    W_u = 0.1 * np.outer([-0.25, -0.25, -0.25, 0.75], X_0)
    masked = [[[False, False]], [[True, False]]]
    assert_only_the_unembedding_moved(oracle.e_training([[3, 0]], theta, 2, 0.1, masked), theta, W_u)


def inference_case():
    """Positions 0, 1, 2 predict in the ratios (1, 2, 4, 1), their inverses, and (1, 2, 4, 1) again.

    With token 3 in it, a position predicts in the ratios (1, 2, 4, 1).
    """
    return SimpleNamespace(
        W_e=np.array([[0.0, 0, 0, 2], [0, 0, 0, -2]]),
        W_p=np.array([[1.0, -1, 1], [-1, 1, -1]]),
        layers=[],
        norm=SimpleNamespace(gamma=np.ones(2), beta=np.zeros(2)),
        W_u=np.log([[1.0, 1], [2, 1], [4, 1], [1, 1]]),
    )


def replayed(*tokens):
    """What a sampler was asked, and the sampler, which draws the given tokens."""
    asked = []

    def sample(q, i):
        asked.append((q, i))
        return tokens[i]

    return asked, sample


def test_without_a_sampler_inference_takes_the_first_maximum_or_is_an_error():
    assert oracle.d_inference([0], inference_case(), 3, 0, None) == [2, 0, 2]
    assert oracle.d_inference([0, 0], inference_case(), 1, 0, None) == [0]
    with pytest.raises(ValueError, match="tau = 0"):
        oracle.d_inference([0], inference_case(), 1, 1, None)


@pytest.mark.parametrize(
    ("tau", "first"), [(1, [1, 2, 4, 1]), (0.5, [1, 4, 16, 1]), (2, [1, 2**0.5, 2, 1]), (math.inf, [1, 1, 1, 1])]
)
def test_inference_samples_from_the_tempered_distribution(tau, first):
    asked, sample = replayed(3, 0, 1)
    assert oracle.d_inference(np.array([0]), inference_case(), 3, tau, sample) == [3, 0, 1]
    assert [i for _, i in asked] == [0, 1, 2]
    for q, _ in asked:  # position 1 holds the drawn token 3
        close(q, np.array(first) / sum(first))


def ed_inference_case():
    """Without layers: position 0 predicts token 0, position 1 eos_token (3), in the ratio 4 to 1, 1, 1."""
    return SimpleNamespace(
        W_e=np.zeros((2, 4)), W_p=np.eye(2), encoder=[], decoder=[], W_u=np.log([[4.0, 1], [1, 1], [1, 1], [1, 4]])
    )


@pytest.mark.parametrize(("l_max", "x_hat"), [(1, [2]), (2, [2, 0]), (3, [2, 0, 3]), (9, [2, 0, 3])])
def test_ed_inference_stops_at_eos_or_at_the_limit(l_max, x_hat):
    assert oracle.ed_inference([0, 1], ed_inference_case(), 0, None, l_max) == x_hat


def test_ed_inference_samples():
    asked, sample = replayed(1, 1)
    assert oracle.ed_inference([0], ed_inference_case(), 0.5, sample, 3) == [2, 1, 1]
    assert [i for _, i in asked] == [0, 1]
    close(asked[0][0], np.array([16, 1, 1, 1]) / 19)
    close(asked[1][0], np.array([1, 1, 1, 16]) / 19)


Heads, Attention = namedtuple("Heads", ["W_q"]), namedtuple("Attention", ["heads", "W_o"])
Layers, Model = namedtuple("Layers", ["attention"]), namedtuple("Model", ["layers", "W_u"])


def test_unstack_makes_lists_of_layers_and_heads():
    W_q, W_o = np.arange(24, dtype=np.float32).reshape(3, 2, 4), np.arange(3)
    theta = oracle.unstack(Model(Layers(Attention(Heads(W_q), W_o)), None))
    assert theta.W_u is None
    assert len(theta.layers) == 3
    for l in range(3):
        assert len(theta.layers[l].attention.heads) == 2
        np.testing.assert_array_equal(theta.layers[l].attention.W_o, l)
        for h in range(2):
            W = theta.layers[l].attention.heads[h].W_q
            assert W.dtype == np.float64
            np.testing.assert_array_equal(W, 8 * l + 4 * h + np.arange(4))
    with pytest.raises(ValueError, match="leading axis"):
        oracle.unstack(Model(Layers(Attention(Heads(W_q), W_o[:2])), None))


def test_rebuild_inverts_flatten():
    theta = d_case()[0]
    arrays = oracle.flatten(theta)
    assert arrays["layers[0].attention.heads[0].W_v"] is theta.layers[0].attention.heads[0].W_v
    again = oracle.flatten(oracle.rebuild(theta, arrays))
    assert list(again) == list(arrays)
    assert all(again[path] is W for path, W in arrays.items())
