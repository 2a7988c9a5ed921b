"""Wrong edits of Gato's lines, and of what section 8 of the paper says one does."""

from .mutation import Mutation

__all__ = ["PRACTICE_MUTATIONS"]

GATO = "algorithms/gato.py"
T = "tests/algorithms/test_gato.py"
LINES = (f"{T}::test_the_embeddings_and_the_distributions_are_the_oracles[paper]",)
RASTER = (f"{T}::test_patches_are_in_raster_order_and_scaled",)
VALUES = (f"{T}::test_continuous_values_are_tokens_by_the_mu_law",)
BACK = (f"{T}::test_tokens_give_values_back_within_half_a_bin_of_the_mu_law",)
DATA = "tests/training/data"
SEQUENCES = "training/data/modalities/sequences.py"
IMAGE = (
    f"{DATA}/test_modalities.py::test_an_image_and_its_name_are_patches_and_tokens_of_which_the_name_is_predicted",
)
CONTROL = (
    f"{DATA}/test_modalities.py::test_control_is_observations_a_separator_and_the_action_which_alone_is_predicted",
)
EPISODES = (
    f"{DATA}/test_modalities.py::test_the_model_reads_the_torque_that_acted_in_whole_numbers_and_predicts_the_experts",
)
G = "tests/training/generation/test_modalities.py"
LOSS = (f"{G}::test_the_loss_is_that_of_the_columns_that_the_mask_names",)
SHADES = (f"{G}::test_a_drawing_has_only_shades_and_is_the_likeliest_at_temperature_0",)
NOISE = "training/data/noise.py"
TEXT = (f"{DATA}/test_noise.py::test_of_text_the_model_reads_noise_and_predicts_what_was_there",)
SOURCE = (f"{DATA}/test_noise.py::test_a_source_has_noise_and_lacks_tokens_and_its_target_is_whole",)
READ = (f"{DATA}/test_noise.py::test_the_loss_of_a_task_reads_the_noise_and_predicts_the_text[d]",)
ENSEMBLES = "training/evaluation/ensembles.py"
E = "tests/training/evaluation/test_ensembles.py"
MEAN = (f"{E}::test_the_ensemble_predicts_with_the_mean_of_the_distributions",)
AVERAGE = (f"{E}::test_the_average_has_the_mean_of_every_parameter",)
FOLDS = (f"{DATA}/test_folds.py::test_every_record_is_held_out_once",)
PAIR = (f"{DATA}/test_multitask.py::test_a_pair_is_source_separator_target_and_the_target_is_predicted",)
ROWS = (f"{DATA}/test_multitask.py::test_rows_of_text_of_pairs_and_of_labels_come_equally_often",)
PROMPTING = "training/generation/prompting.py"
P = "tests/training/generation/test_prompting.py"
SHOTS = (f"{P}::test_shots_are_read_and_stand_before_the_text",)
ANSWER = (f"{P}::test_the_answer_stands_behind_the_last_marker",)
VOTES = (f"{P}::test_most_votes_win_and_ties_go_to_the_first",)
STOPPED = ("tests/training/loop/test_progress.py::test_evaluations_without_a_better_loss_end_the_run",)

GATO_MUTATIONS = {
    "patches not divided by the root of their side": Mutation(
        GATO, "raster_patches", "return", "/ side**0.5", "", 10, None, RASTER
    ),
    "patches by columns": Mutation(GATO, "raster_patches", "grid", "(-4, -2, -1)", "(-2, -4, -1)", 10, None, RASTER),
    "rows and columns of patches exchanged": Mutation(
        GATO,
        "raster_places",
        "return",
        "jnp.asarray(rows.ravel()), jnp.asarray(columns.ravel())",
        "jnp.asarray(columns.ravel()), jnp.asarray(rows.ravel())",
        10,
        None,
        RASTER,
    ),
    "no residual around the block": Mutation(GATO, "patch_embedding", "U", "U + _conv(", "_conv(", 10, None, LINES),
    "first activation of the block left out": Mutation(
        GATO,
        "patch_embedding",
        "V",
        'activate("gelu", _group_norm(U, image.gamma1, image.beta1), implementation)',
        "_group_norm(U, image.gamma1, image.beta1)",
        10,
        None,
        LINES,
    ),
    "first norm of the block left out": Mutation(
        GATO, "patch_embedding", "V", "_group_norm(U, image.gamma1, image.beta1)", "U", 10, None, LINES
    ),
    "second norm with the first one's parameters": Mutation(
        GATO, "patch_embedding", "U", "image.gamma2, image.beta2", "image.gamma1, image.beta1", 10, None, LINES
    ),
    "positions in the image left out": Mutation(
        GATO,
        "patch_embedding",
        "E",
        "E + positional_embedding(of_batch, W, implementation=implementation)",
        "E",
        10,
        None,
        LINES,
    ),
    "positions of rows for those of columns": Mutation(
        GATO,
        "patch_embedding",
        "for",
        "(row, image.W_row), (column, image.W_column)",
        "(row, image.W_column), (column, image.W_row)",
        10,
        None,
        LINES,
    ),
    "bias of a convolution left out": Mutation(
        GATO, "_conv", "return", "out + b[None, None, None]", "out", 10, None, LINES
    ),
    "norm of each channel alone": Mutation(GATO, "_group_norm", "m", "(1, 2, 4)", "(1, 2)", 10, None, LINES),
    "variance not around the mean": Mutation(
        GATO, "_group_norm", "v", "(grouped - m) ** 2", "grouped**2", 10, None, LINES
    ),
    "tokens in place of patches": Mutation(
        GATO, "gato_embedding", "X", "jnp.where(at[None] < 0, tokens, of_patches)", "tokens", 10, None, LINES
    ),
    "positions in the sequence left out": Mutation(
        GATO, "gato_embedding", "X", "f.at_positions(X, x, theta)", "X", 10, None, LINES
    ),
    "sign of the μ-law left out": Mutation(GATO, "mu_law", "return", "jnp.sign(x) *", "", 10, None, VALUES),
    "μ-law without M": Mutation(GATO, "mu_law", "return", "MU * M + 1", "MU + 1", 10, None, VALUES),
    "values in the bin beside": Mutation(GATO, "discretize", "return", "jnp.floor", "jnp.ceil", 10, None, VALUES),
    "the lower end of a bin for its middle": Mutation(GATO, "undiscretize", "return", "v + 0.5", "v", 10, None, BACK),
    "loss on patches": Mutation(
        SEQUENCES, "Vocabulary._image", "return", "np.zeros(n, bool)", "np.ones(n, bool)", 10, None, IMAGE
    ),
    "loss on separators of control": Mutation(
        SEQUENCES, "Vocabulary._control", "return", "> seen.shape[1]", ">= seen.shape[1]", 10, None, CONTROL
    ),
    "what was asked read for what was done": Mutation(
        SEQUENCES, "Vocabulary._control", "return", "_replace(read=read)", "_replace(read=x)", 10, None, CONTROL
    ),
    "what is predicted read for what was done": Mutation(
        "training/tasks/gato.py", "hidden_state", "x", 'batch.get("x_read", batch["x"])', 'batch["x"]', 10, None, LOSS
    ),
    "no disturbance in the demonstrations": Mutation(
        "training/data/modalities/pendulum.py",
        "expert_episodes",
        "disturbed",
        "disturbance * rng",
        "0 * rng",
        10,
        None,
        EPISODES,
    ),
    "a drawing of all values": Mutation(
        "training/generation/modalities.py", "_next", "logits", "[first:end,", "[first:,", 14, None, SHADES
    ),
}
"""Gato, the paper's §6."""

SECTION_8_MUTATIONS = {
    "no token replaced": Mutation(
        NOISE, "Noisy.batch", "read", "(chosen < self._noise) & ordinary", "(chosen < 0) & ordinary", 13, None, TEXT
    ),
    "special tokens replaced, too": Mutation(
        NOISE, "Noisy.batch", "read", "(chosen < self._noise) & ordinary", "chosen < self._noise", 13, None, TEXT
    ),
    "no token left out": Mutation(
        NOISE, "Noisy.batch", "batch", "(left_out < self._deletion) & ordinary", "left_out < 0", 11, None, SOURCE
    ),
    "noise not read": Mutation(
        "training/tasks/d.py", "_columns", "X", 'batch.get("x_read", batch["x"])', 'batch["x"]', 13, None, READ
    ),
    "product of the distributions for their mean": Mutation(
        ENSEMBLES,
        "ensemble_totals.totals",
        "log_P",
        "jax.nn.logsumexp(jnp.stack(logs), axis=0) - jnp.log(float(len(logs)))",
        "jnp.stack(logs).mean(axis=0)",
        10,
        None,
        MEAN,
    ),
    "sum of the parameters for their mean": Mutation(
        ENSEMBLES, "averaged", "mean", "/ len(arrays)", "", 10, None, AVERAGE
    ),
    "another part held out": Mutation("training/data/folds.py", "folded", "parts", "== i - 1", "== 0", 9, None, FOLDS),
    "loss on sources": Mutation(
        "training/data/multitask.py",
        "task_store",
        "answers",
        "[False] * (1 + len(a))",
        "[True] * (1 + len(a))",
        13,
        None,
        PAIR,
    ),
    "tasks left out of the batches": Mutation(
        "training/data/loading.py", "load_run_data", "train", "[train, *map(make, stored)]", "[train]", 13, None, ROWS
    ),
    "examples left out": Mutation(
        PROMPTING,
        "few_shot",
        "return",
        "for shot in shots)",
        "for shot in shots[:0])",
        14,
        None,
        SHOTS,
    ),
    "answer behind the first marker": Mutation(
        PROMPTING, "final_answer", "rest", "text.rpartition", "text.partition", 14, None, ANSWER
    ),
    "first answer for the majority's": Mutation(
        PROMPTING, "majority", "winner", "counts.most_common(1)[0]", "next(iter(counts.items()))", 14, None, VOTES
    ),
    "never stopped early": Mutation(
        "training/loop/progress.py",
        "Progress.note",
        "self.stopped",
        "0 < patience <= self.worse",
        "False",
        13,
        None,
        STOPPED,
    ),
}
"""Section 8."""

PRACTICE_MUTATIONS: dict[str, Mutation] = GATO_MUTATIONS | SECTION_8_MUTATIONS
"""What was changed → the edit."""
