"""Induction heads form in attention-only models with two layers, and not with one (Elhage et al. 2021; Olsson 2022).

Trains models of both depths on random tokens that repeat, and draws what happens into induction.png, and the circuits
of one model into circuits.png: ``python -m docs.examples.induction_heads [SEEDS] [STEPS]``, two minutes on two cores.
"""

import dataclasses
import math
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure

from algorithms import PAPER, DTransformerConfig, d_hidden_state, init_d_transformer
from algorithms.inside import record
from algorithms.lines import Attention, Embedding, LayerNorm, Rotary
from training.interpretability import circuits, scores
from training.interpretability.induction import RepeatedTokens, loss_without, losses, measured

# Positions are rotary, so only queries and keys depend on them, and the residual stream holds tokens alone.
ATTENTION_ONLY = PAPER.but(
    embedding=Embedding(positions=None),
    norm=LayerNorm(epsilon=1e-5),
    attention=Attention(positions=Rotary(), biases=False),
    mlp=None,
)
CONFIG = DTransformerConfig(N_V=48, l_max=64, L=2, H=4, d_e=64, d_mlp=1, variant=ATTENTION_ONLY)
B, PERIODS, EVERY, PREVIOUS = 32, (12, 32), 25, 0.2  # PREVIOUS: the least score of a previous-token head
OPTIMIZER, GUESSING = optax.adam(3e-3, b2=0.98), math.log(CONFIG.N_V)


def repeating(key):
    """Random tokens that repeat, each sequence with a random period."""
    of_period, of_tokens = jax.random.split(key)
    period = jax.random.randint(of_period, (B, 1), *PERIODS)
    drawn = jax.random.randint(of_tokens, (B, CONFIG.l_max), 0, CONFIG.N_V)
    t = jnp.arange(CONFIG.l_max)[None]
    return RepeatedTokens(jnp.take_along_axis(drawn, t % period, axis=1), t[:, 1:] > period)


@jax.jit
def updated(state, key, steps):
    def loss(theta, tokens):
        first, again = losses(theta, tokens)
        share = tokens.repeats.mean()
        return (1 - share) * first + share * again

    def step(state, number):
        theta, of_optimizer = state
        gradient = jax.grad(loss)(theta, repeating(jax.random.fold_in(key, number)))
        updates, of_optimizer = OPTIMIZER.update(gradient, of_optimizer)
        return (optax.apply_updates(theta, updates), of_optimizer), None

    return jax.lax.scan(step, state, steps)[0]


def trained(L, seed, steps):
    """The final parameters; and by step, what is measured of tokens not seen in training, and the K-composition."""
    of_theta, of_data = jax.random.split(jax.random.key(seed))
    theta = init_d_transformer(of_theta, dataclasses.replace(CONFIG, L=L))
    state, tokens, found = (theta, OPTIMIZER.init(theta)), repeating(jax.random.key(2**31)), {}
    for first in range(0, steps + 1, EVERY):
        theta = state[0]
        K = circuits.composition_scores(theta.layers.attention)["K"][0, :, -1]
        found[first] = jax.tree.map(np.asarray, (measured(theta, tokens), K))
        state = updated(state, of_data, jnp.arange(first, first + EVERY))
    return theta, found


def ablated(theta, measures):
    """The losses on repeats without each head, and without all previous-token heads."""
    tokens, heads = repeating(jax.random.key(2**31)), np.argwhere(measures.previous >= 0)
    of_each = [float(loss_without(theta, tokens, jnp.array([head]))) for head in heads]
    return [*of_each, float(loss_without(theta, tokens, jnp.asarray(np.argwhere(measures.previous >= PREVIOUS))))]


def draw(models, path):
    """Losses, scores, K-composition and ablations of models, ``(theta, found)`` by depth and seed."""
    figure = Figure(figsize=(9, 6.5), layout="constrained")
    (loss, score), (composition, ablation) = figure.subplots(2, 2)
    for (L, seed), (theta, found) in models.items():
        steps, (of_steps, K) = [*found], zip(*found.values(), strict=True)
        name, style = f" {L} layer{'s' * (L > 1)}", "-" if L > 1 else "--"

        def line(axes, values, label, steps=steps, style=style, seed=seed):
            axes.plot(steps, values, style, label=label if seed == 0 else None, color=f"C{len(axes.lines) % 4}")

        line(loss, [m.again for m in of_steps], name)
        line(score, [m.previous[0].max() for m in of_steps], f"previous token,{name}")
        line(score, [m.induction.max() for m in of_steps], f"induction,{name}")
        if L > 1:
            line(composition, [k.max() for k in K], "largest of a pair")
            line(composition, [k.mean() for k in K], "mean")
            bars = ablated(theta, of_steps[-1])
            ablation.bar(np.arange(len(bars)) + 0.25 * (seed - 1), bars, 0.25, label=f"seed {seed}")
    for axes in (loss, ablation):
        axes.axhline(GUESSING, color="gray", linestyle=":", label="guessing")
    loss.set(xlabel="step", ylabel="nats", title="Loss on tokens that repeat")
    score.set(xlabel="step", ylim=(0, 1), title="Largest score of a head")
    composition.set(xlabel="step", title="K-composition of layer 0 with layer 1")
    ablation.set_xticks(range(2 * CONFIG.H + 1), [*(f"{l},{h}" for l, h in np.ndindex(2, CONFIG.H)), "all\nprev."])
    ablation.set(xlabel="without head", ylabel="nats", title="Loss on repeats without a head, at the end")
    for axes in (loss, score, composition, ablation):
        axes.legend(fontsize=7)
    figure.savefig(path, dpi=100)


def draw_circuits(theta, path):
    """Layer 0's head of the largest previous-token score, and the induction head that reads most from it."""
    x = jnp.tile(jax.random.permutation(jax.random.key(0), CONFIG.N_V)[:20], 2)
    A, W, W_e = record(d_hidden_state, "A")(x, theta)[1]["A"], theta.layers.attention, theta.W_e
    K = circuits.composition_scores(W)["K"][0, :, 1]
    earlier = int(scores.previous_token_scores(A)[0].argmax())
    later = int(jnp.where(scores.induction_scores(A, x)[1] > 0.5, K[earlier], 0).argmax())
    OV, QK = circuits.ov_circuits(W), circuits.qk_circuits(W)
    panels = {
        (f"Head (0, {earlier}): previous token", "token attended to", "token"): A[0, earlier].T,
        (f"Head (1, {later}): induction", "token attended to", "token"): A[1, later].T,
        ("K-composition", "head of layer 1", "head of layer 0"): K,
        # how well what the earlier head wrote about a token fits a query; what attending to a token adds to each logit
        (f"QK of (1, {later}) after OV of (0, {earlier})", "query", "token before the key"): (
            (OV[0, earlier] @ W_e).T @ QK[1, later] @ W_e
        ),
        (f"OV of (1, {later}), token to logit", "token attended to", "logit of token"): theta.W_u @ OV[1, later] @ W_e,
    }
    figure = Figure(figsize=(10, 6.6), layout="constrained")
    *places, last = figure.subplots(2, 3).flat
    for axes, ((title, across, down), values) in zip(places, panels.items(), strict=True):
        most, is_signed = float(jnp.abs(values).max()), float(values.min()) < 0
        image = axes.imshow(values, cmap="RdBu" if is_signed else "cividis", vmin=-most if is_signed else 0, vmax=most)
        axes.set(title=title, xlabel=across, ylabel=down)
        figure.colorbar(image, ax=axes, shrink=0.8)
    for h, of_head in enumerate(np.asarray(circuits.copying_eigenvalues(theta)[1])):
        last.scatter(of_head.real, of_head.imag, s=14, marker="os^D"[h], label=f"(1, {h})")
    last.set(title="Eigenvalues of OV, token to token", xlabel="real part", ylabel="imaginary part")
    last.legend(fontsize=7)
    figure.savefig(path, dpi=100)


def main(seeds=3, steps=1000):
    models = {(L, seed): trained(L, seed, steps) for seed in range(seeds) for L in (2, 1)}
    for (L, seed), (_, found) in models.items():
        last, _ = found[max(found)]
        largest = ", ".join(f"{name} {getattr(last, name).max():.2f}" for name in ("previous", "induction"))
        print(f"{L} layers, seed {seed}: loss on repeats {last.again:.2f} (guessing: {GUESSING:.2f}), {largest}")
    draw(models, "induction.png")
    draw_circuits(models[2, 0][0], "circuits.png")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
