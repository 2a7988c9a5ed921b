"""A config.json with the sixteen flags that variants were before, read into lines."""

import dataclasses

from algorithms import BART, BERT, GPT2, VASWANI
from training.tasks.models import config_from_json, config_to_json, lines_from_flags

# As the version before wrote them, for `--variant`.
FLAGS = {"name": "PAPER", "norm": "layer_norm", "epsilon": 0.0, "activation": None, "norm_first": False}
FLAGS |= {"final_norm": False, "positions": "learned", "first_position": 0, "context_positions": False}
FLAGS |= {"scale_embedding": False, "normalize_embedding": False, "unembedding_bias": False, "head": True}
FLAGS |= {"pooler": False, "tied": False, "dropout": 0.0}
GPT2_FLAGS = FLAGS | {"name": "GPT2", "epsilon": 1e-05, "activation": "gelu_tanh", "tied": True}
CONFIG = {"N_V": 4096, "l_max": 128, "H": 4, "d_e": 128, "d_mlp": 512, "d_attn": 32, "d_mid": 32}
CONFIG |= {"variant": GPT2_FLAGS | {"dropout": 0.1}, "tied": True, "L": 2}


def test_the_flags_of_the_version_before_are_lines():
    norms = {"normalize_embedding": True, "unembedding_bias": True, "tied": True, "activation": "gelu"}
    sinusoids = {"positions": "sinusoidal", "scale_embedding": True, "tied": True, "activation": "relu"}
    assert lines_from_flags(GPT2_FLAGS) == GPT2
    assert lines_from_flags(FLAGS | norms | {"epsilon": 1e-12}) == BERT
    assert lines_from_flags(FLAGS | sinusoids | {"epsilon": 1e-6}) == VASWANI
    bart = norms | {"epsilon": 1e-5, "context_positions": True, "first_position": 2}
    assert lines_from_flags(FLAGS | bart) == BART


def test_a_configuration_of_the_version_before_is_read():
    config = config_from_json("d", CONFIG)
    assert config.variant == GPT2  # dropout is training's
    assert (config.H_kv, config.L, config.tied) == (4, 2, True)
    assert config_from_json("d", config_to_json(config)) == config
    assert dataclasses.replace(config) == config
