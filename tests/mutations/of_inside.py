"""Wrong edits of what looks inside, and of what is computed from what was recorded."""

from .mutation import Mutation

__all__ = ["INSIDE_MUTATIONS"]

INSIDE, INTERPRETABILITY = "algorithms/inside", "training/interpretability"
T, U, V = "tests/algorithms", "tests/training/interpretability", "tests/training/generation"
EVALUATION, PARTS = f"{INSIDE}/evaluation.py", f"{INSIDE}/parts.py"
ATTRIBUTION, PATCHING, SCORES = (f"{INTERPRETABILITY}/{name}.py" for name in ("attribution", "patching", "scores"))
OF_PATCHING = f"{U}/test_interpretability.py::test_activation_patching_is_one_intervention_after_the_other"
OF_SCORES = (f"{U}/test_interpretability.py::test_scores_of_drawn_patterns",)


def _edit(file: str, function: str, statement: str, old: str, new: str, *tests: str, algorithm: int = 10) -> Mutation:
    """An edit that the cross-check does not see: it spoils no line."""
    return Mutation(file, function, statement, old, new, algorithm, None, tests)


INSIDE_MUTATIONS: dict[str, Mutation] = {
    # What is recorded
    "attention as printed where nobody looks": _edit(
        "algorithms/machinery/naming.py",
        "shows",
        "return",
        "looking.value is not None and",
        "looking.value is None or",
        f"{T}/test_blockwise.py",
        algorithm=4,
    ),
    "outputs by the lines as printed": _edit(
        f"{INSIDE}/transformations.py",
        "_program_with",
        "program",
        '"kernel"',
        '"printed"',
        f"{T}/test_inside.py::test_scores_are_computed_beside_a_kernel_only_where_they_are_asked_for",
    ),
    "scores with their rows last": _edit(
        PARTS,
        "_order",
        "return",
        "*own[:1], *front, *own[1:]",
        "*own[1:], *front, *own[:1]",
        f"{T}/test_inside.py::test_columns_of_a_sum_to_1_and_are_0_where_masked",
        algorithm=4,
    ),
    "heads taken from the outermost vmap": _edit(
        PARTS,
        "_order",
        "heads",
        "mapped - site.each",
        "0",
        f"{T}/test_inside.py::test_vmap_of_record_and_record_of_vmap",
        f"{T}/test_inside.py::test_nested_vmap_puts_the_outer_axis_first",
        algorithm=5,
    ),
    "an axis of vmap not counted": _edit(
        "algorithms/machinery/named.py",
        "_batched_named",
        "return",
        'params["mapped"] + 1',
        'params["mapped"]',
        f"{T}/test_inside.py::test_vmap_of_record_and_record_of_vmap",
    ),
    "the line of a caller named": _edit(
        "algorithms/machinery/naming.py",
        "_line",
        "path",
        "own[-1].last",
        "own[0].first",
        f"{T}/test_inside.py::test_every_line_is_the_oracles",
    ),
    "another layer kept": _edit(
        EVALUATION,
        "_chosen",
        "is_this",
        "number == jnp",
        "number + 1 == jnp",
        f"{T}/test_inside.py::test_parts_are_those_of_the_whole",
    ),
    "every layer kept of one": _edit(
        EVALUATION,
        "Evaluator._layers",
        "return",
        "self.requests[i].layers(length)",
        "jnp.arange(length)",
        f"{T}/test_inside.py::test_only_what_was_asked_for_is_kept",
    ),
    "recorded again in the backward pass": _edit(
        EVALUATION,
        "_is_computed_again",
        "return",
        'eqn.params["differentiated"]',
        "not eqn.params",
        f"{T}/test_inside.py::test_with_layers_computed_again_in_the_backward_pass_or_unrolled",
    ),
    "names in the order of recording": _edit(
        f"{INSIDE}/transformations.py",
        "_names",
        "return",
        "sorted(seen)",
        "seen",
        f"{T}/test_inside_recorded.py::test_it_stays_what_it_is_through",
    ),
    # What is replaced
    "every layer replaced for one": _edit(
        PARTS,
        "edited",
        "changed",
        "jnp.where(is_chosen.any(), changed, value) if layered else changed",
        "changed",
        f"{T}/test_inside_changes.py::test_without_a_head_is_with_its_output_weights_at_0",
        algorithm=5,
    ),
    "the token before replaced": _edit(
        PARTS,
        "_at_axis",
        "index",
        "slice(index, index + 1 or None)",
        "slice(index - 1, index or None)",
        f"{T}/test_inside_changes.py::test_a_change_of_a_token_reaches_it_and_later_ones_only",
    ),
    "twice the change added": _edit(
        PARTS,
        "edited",
        "replacement",
        "old + _of_turn",
        "old + 2 * _of_turn",
        f"{T}/test_inside_changes.py::test_gradients_are_the_differences_of_interventions",
        algorithm=4,
    ),
    "scores that a kernel does not read replaced": _edit(
        f"{INSIDE}/transformations.py",
        "_changed",
        "program",
        '"printed"',
        '"beside"',
        f"{T}/test_inside_changes.py::test_a_change_of_the_weights_is_computed_on_with",
        algorithm=4,
    ),
    "a while loop not steered": _edit(
        EVALUATION,
        "Evaluator._while",
        "return",
        "self._turn(body.jaxpr, body.consts, [*of_body, *state], turns)[0]",
        "jaxpr_as_fun(body)(*of_body, *state)",
        f"{T}/test_inside_changes.py::test_translation_is_steered_in_its_while_loop",
        algorithm=15,
    ),
    # While text is generated
    "steps from the cache not steered": _edit(
        "training/generation/inside.py",
        "Inside.__init__",
        "self.decode",
        "intervene(decoding.decode, places)",
        "decoding.decode",
        f"{V}/test_generation_inside.py::test_steered_from_the_cache_is_steered_algorithm_14",
        algorithm=14,
    ),
    "the last token of a prompt read twice": _edit(
        "training/generation/inside.py",
        "_of_prompt",
        "of_row",
        ": length - 1",
        ": length",
        f"{V}/test_generation_inside.py::test_reading_while_generating_is_one_pass_over_the_text",
        algorithm=14,
    ),
    "those who join read as the others": _edit(
        "training/generation/inside.py",
        "Reading.choose",
        "every",
        "self.rows + self.latest",
        "self.latest + self.rows",
        f"{V}/test_generation_inside.py::test_who_joins_is_read_and_steered_as_the_others",
        algorithm=14,
    ),
    "what a rehearsal reads noted, too": _edit(
        "training/generation/continuation.py",
        "Continuation.copy",
        "other._reading",
        "self._reading.copy()",
        "self._reading",
        "tests/training/serving/test_engine.py::test_who_is_served_is_steered_and_read_as_by_algorithm_14",
        algorithm=14,
    ),
    # What is computed from it
    "the lens without the last norm": _edit(
        f"{INTERPRETABILITY}/lens.py",
        "unembedded",
        "X",
        'X if norm is None else theta.variant.norm(X, norm, "paper")',
        "X",
        f"{U}/test_interpretability.py::test_the_last_row_of_the_logit_lens_is_the_output",
    ),
    "the lens before norms that come last": _edit(
        f"{INTERPRETABILITY}/lens.py",
        "after_layers",
        "return",
        'variant.norm(X, norm, "paper")',
        "X",
        f"{U}/test_interpretability.py::test_the_logit_lens_of_a_decoder_whose_norms_come_last",
    ),
    "the mean that the last norm takes away attributed": _edit(
        ATTRIBUTION,
        "_last_line",
        "return",
        "direction - direction.mean()",
        "direction",
        f"{U}/test_interpretability.py::test_the_parts_add_up_to_the_logits",
    ),
    "biases of attention attributed to the MLP": _edit(
        ATTRIBUTION,
        "attribution",
        "mlp",
        "- heads.sum(1) - b_o",
        "- heads.sum(1)",
        f"{U}/test_interpretability.py::test_the_parts_add_up_to_the_logits",
    ),
    "the token itself for the one before": _edit(SCORES, "previous_token_scores", "return", "k=1", "k=0", *OF_SCORES),
    "the same token for what followed it": _edit(
        SCORES, "induction_scores", "follows_copy", "jnp.roll(x, 1, axis=-1)", "x", *OF_SCORES
    ),
    "queries and keys of the QK circuit exchanged": _edit(
        f"{INTERPRETABILITY}/circuits.py",
        "qk_circuits",
        "return",
        '"lhad,lhae->lhde"',
        '"lhad,lhae->lhed"',
        f"{U}/test_interpretability.py::test_circuits_are_what_attention_computes",
        algorithm=4,
    ),
    "K-composition by queries": _edit(
        f"{INTERPRETABILITY}/circuits.py",
        "composition_scores",
        "read",
        "(W_q.mT, W_k)",
        "(W_k.mT, W_q)",
        f"{U}/test_interpretability.py::test_composition_by_its_definition",
        algorithm=4,
    ),
    "a run patched with its own values": _edit(
        PATCHING, "activation_patching", "seen", "(*source)", "(*target)", OF_PATCHING
    ),
    "the estimate by the source's gradient": _edit(
        PATCHING,
        "attribution_patching",
        "gradient",
        "(*target)",
        "(*source)",
        f"{U}/test_interpretability.py::test_attribution_patching_is_the_slope_of_patching",
    ),
    "a path through MLPs": _edit(
        PATCHING,
        "path_patching",
        "received",
        "{**kept, sender: sent[sender]}",
        "{sender: sent[sender]}",
        f"{U}/test_interpretability.py::test_path_patching_by_hand",
    ),
    "the first repeated token told by nothing": _edit(
        f"{INTERPRETABILITY}/induction.py",
        "twice",
        "repeats",
        "> len(before) + n",
        ">= len(before) + n",
        f"{U}/test_induction.py::test_sequences_stand_there_twice",
    ),
    "the page's weights by the token attended to": _edit(
        f"{INTERPRETABILITY}/page/look.py",
        "attending",
        "return",
        "jnp.swapaxes(A, 2, 3)",
        "A",
        f"{U}/test_page.py::test_the_weights_on_the_page_are_those_of_numpy",
        algorithm=4,
    ),
}
"""What was changed → the edit."""
