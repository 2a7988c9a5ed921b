"""Published records at drawn sizes that no multiple of 8 divides, against the oracle: heads that share no keys and
values or all, odd numbers of layers, windows narrower than a prompt, and experts in ties.
"""

import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import (
    VARIANTS,
    DTransformerConfig,
    EDTransformerConfig,
    ETransformerConfig,
    d_logits,
    e_logits,
    ed_logits,
)
from tests import cases, family_cases
from tests.conftest import SEED
from training.crosscheck.changes import ARCHITECTURES
from training.crosscheck.models import small
from training.generation import generate

LOGITS = {8: ed_logits, 9: e_logits, 10: d_logits}


def drawn(name):
    """A configuration of a record, and parameters with which half of the experts have the same score."""
    rng, variant = np.random.default_rng(zlib.crc32(f"{SEED} {name}".encode())), small(VARIANTS[name])
    H = int(rng.choice([6] if any(getattr(line, "d_head", None) for line in variant.attentions) else [1, 3, 5, 6]))
    groups = [n for n in (1, H) if all(type(line).__name__ != "Latent" for line in variant.attentions)] or [1]
    d_e, d_attn, d_mid = (2 * int(rng.choice([3, 5, 7, 9])) for _ in range(3))
    is_part = any(getattr(line.positions, "share", 1) < 1 for line in variant.attentions)
    sizes = {"N_V": 2 * int(rng.integers(6, 12)) + 1, "l_max": 23, "d_e": d_e, "d_mlp": 2 * int(rng.integers(3, 9)) + 1}
    sizes |= {"H": H, "H_kv": H // int(rng.choice(groups)), "d_attn": d_attn * (1 + is_part), "d_mid": d_mid}
    L = 2 * int(rng.integers(0, 3)) + max(variant.cycle, variant.shared_layers) // 2 * 2 + 1
    L = variant.shared_layers if variant.shared_layers > 1 else 3 if variant.lenders else L
    kind = {8: EDTransformerConfig, 9: ETransformerConfig, 10: DTransformerConfig}[ARCHITECTURES.get(name, 10)]
    config = kind(**sizes, variant=variant, **({"L_enc": L, "L_dec": L} if kind is EDTransformerConfig else {"L": L}))

    def tied(path, a):
        of_router = jax.tree_util.keystr(path).rpartition(".")[2] in ("W_r", "b_r", "b_choice")
        return a.at[:, a.shape[1] // 2 :].set(0) if of_router else a

    return config, jax.tree_util.tree_map_with_path(tied, cases.random_theta(config))


@pytest.mark.end_to_end
@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", VARIANTS)
def test_a_record_is_the_oracles_at_drawn_sizes(name):
    config, theta = drawn(name)
    rng, algorithm = np.random.default_rng(1), ARCHITECTURES.get(name, 10)
    x, z = rng.integers(0, config.N_V, 13), rng.integers(0, config.N_V, 11)
    context = {"z": z} if algorithm == 8 else {}
    expected = family_cases.oracle_logits(x, theta, config.variant, **context)
    found = LOGITS[algorithm](*map(jnp.asarray, (*context.values(), x)), theta)
    np.testing.assert_allclose(found, expected, atol=1e-9 * np.abs(expected).max())
    if algorithm == 10:
        options = {"l_gen": 2, "tau": 0.0, "key": jax.random.key(0)}
        first, second = generate(theta, x[None], lengths=[len(x)], config=config, **options)[0]
        assert first == expected[:, -1].argmax()
        again = family_cases.oracle_logits([*x, first], theta, config.variant)
        assert second == again[:, -1].argmax()
