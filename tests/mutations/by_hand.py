"""Wrong edits by hand: of sharding, serving, data, chat and looking inside, where no rule makes those that matter."""

from tests.mutations.edits import Edit

__all__ = ["BY_HAND"]

# fmt: off
_ROWS: tuple[tuple[str, str, str, str, str, str, tuple[str, ...]], ...] = (
    # what is wrong, file, function, statement, code, code in its place, files of tests/ of which one must notice
    ("IDs stay as narrow as they came", "algorithms/machinery/arrays.py", "as_ids", "return", "jnp.asarray(x).astype(int)", "jnp.asarray(x)", ("algorithms/test_narrow_types.py",)),
    ("halves of the queries on a neighbor", "algorithms/machinery/devices.py", "_in_halves", "h", "2 * n - 1 - i", "2 * n - 2 - i", ("algorithms/test_sharding.py",)),
    ("platform of the process, not of the program", "algorithms/machinery/devices.py", "platform_of", "for", "(jax.typeof(X).sharding.mesh, jax.sharding.get_abstract_mesh())", "()", ("algorithms/test_platform.py",)),
    ("inputs of a rule vary differently", "algorithms/machinery/devices.py", "match_varying_axes", "return", "if axes else tree", "if () else tree", ("algorithms/test_shard_map.py",)),
    ("lengths of JAX not checked", "algorithms/machinery/contract.py", "check_value", "if", "not _on_a_cpu(value)", "True", ("algorithms/test_contract.py",)),
    ("prompts one slot too early in the cache", "training/generation/states.py", "prompt_tokens", "return", "first - lengths + 1", "first - lengths", ("algorithms/test_family.py", "training/generation/test_rings.py")),
    ("a ring of one row too few", "training/generation/states.py", "windows", "return", ".window for", ".window and variant.attention_of(l).window - 1 for", ("training/generation/test_rings.py",)),
    ("a ring written at another row", "training/generation/cache.py", "KeyValues.stored.store", "return", "slot % cache.shape[1]", "(slot + 1) % cache.shape[1]", ("training/generation/test_rings.py",)),
    ("a part of a cache read a token too late", "training/generation/slots.py", "Slots.attend", "is_read", "start <= slot", "start < slot", ("training/generation/test_slots.py",)),
    ("new tokens one position too early", "training/generation/decoding.py", "_scores", "f", '"Algorithm 10", y, weights, positions=t', '"Algorithm 10", y, weights, positions=t - 1', ("algorithms/test_family.py",)),
    ("window of the cache off by one", "training/generation/attending.py", "CachedAttention.extended", "first", "line.window - 1", "line.window", ("training/generation/test_rings.py",)),
    ("parameters of the next layers that share theirs", "algorithms/layers.py", "Lines._run.turn", "W", "i // shared", "(i + 1) // shared", ("algorithms/test_family.py",)),
    ("parameters by turns in the cache", "training/generation/layout.py", "_one_by_one", "return", "for layer in map(laid_out, layers) for _ in range(shared)", "for _ in range(shared) for layer in map(laid_out, layers)", ("algorithms/test_family.py",)),
    ("patches left out of a sequence", "training/tasks/gato_embedding.py", "gato_embedding", "return", "at[None] < 0", "at[None] < 1", ("training/test_gato_embedding.py",)),
    ("no token replaced", "training/data/batches.py", "Noise.__call__", "read", "(chosen < self.noise) & ordinary", "(chosen < 0) & ordinary", ("training/data/test_noise.py",)),
    ("no token left out", "training/data/batches.py", "Noise.__call__", "batch", "(left_out < self.deletion) & ordinary", "left_out < 0", ("training/data/test_noise.py",)),
    ("loss on sources", "training/data/loading.py", "task_store", "answers", "[False] * (1 + len(a))", "[True] * (1 + len(a))", ("training/data/test_multitask.py",)),
    ("tasks left out of the batches", "training/data/loading.py", "load_run_data", "parts", "[train, *map(examples, stored)]", "[train]", ("training/data/test_multitask.py",)),
    ("never stopped early", "training/loop/run_store.py", "Progress.note", "self.stopped", "0 < patience <= self.worse", "False", ("training/loop/test_trainer.py",)),
    ("rows of q and k in the order of GGUF", "training/interchange/gguf_kinds.py", "_reordered", "return", ".swapaxes(1, 2)", "", ("training/interchange/test_gguf.py",)),
    ("rows of k by the heads of q", "training/interchange/gguf_kinds.py", "", "HEADS", '"attn_k": "num_key_value_heads"', '"attn_k": "num_attention_heads"', ("training/interchange/test_gguf.py",)),
    ("tensors of GGUF from the beginning of the file", "training/interchange/gguf_file.py", "_placed", "info", "begin + offset", "offset", ("training/interchange/test_gguf.py",)),
    ("lengths in GGUF believed", "training/interchange/gguf_file.py", "_Header._take", "if", "n_bytes > len(self._data) - self.at", "False", ("training/interchange/test_gguf.py",)),
    ("ends of tensors in GGUF believed", "training/interchange/gguf_file.py", "_placed", "if", "info.end > size", "False", ("training/interchange/test_gguf.py",)),
    ("a template outside the sandbox", "training/data/chat_worker.py", "compiled", "environment", "jinja2.sandbox.ImmutableSandboxedEnvironment", "jinja2.Environment", ("training/data/test_chat.py",)),
    ("a conversation without a last answer taken", "training/data/conversations.py", "conversation", "if", 'messages[-1]["role"] != "assistant"', "False", ("training/data/test_conversations.py",)),
    ("an answer without its end token", "training/data/answers.py", "_Conversation._ended", "following", "after + len(token)", "after", ("training/data/test_answers.py",)),
    ("heads of recurrences apart", "algorithms/roles.py", "muon_dimensions.of_array", "follows_heads", "axes[i - 1] in heads", "axes[i - 1] in HEADS", ("training/loop/test_optimizers.py",)),
    ("loss on what the user says", "training/data/conversations.py", "Answers.encode", "answered", "(begins < end) & (ends > begin)", "ends > 0 * begin", ("training/data/test_conversations.py",)),
    ("texts that part a token later", "training/generation/prefixes.py", "_shared", "return", "int(differ.argmax())", "1 + int(differ.argmax())", ("training/generation/test_prefixes.py",)),
    ("positions from 0 after what was read", "algorithms/cache.py", "read_tokens", "slots", "jnp.where(n < 0, C, n)[..., None]", "0 * n[..., None]", ("algorithms/test_cache.py",)),
    ("positions that go on in the next document", "algorithms/masks.py", "in_documents", "return", "positions_in_runs(segments) if positions is None else positions", "positions", ("algorithms/test_transformers.py",)),
    ("a number that comes back as the same document", "algorithms/masks.py", "documents", "numbers", "runs(numbers)", "numbers + 0", ("algorithms/test_masks.py",)),
    ("the next token in place of the one after it", "algorithms/losses.py", "mtp_token_losses", "return", "jnp.roll(y, -1, axis=-1)", "y", ("algorithms/test_mtp.py",)),
    ("a token of the next document predicted", "algorithms/losses.py", "mtp_token_losses", "counted", "counted & jnp.roll(counted, -1, axis=-1)", "counted", ("algorithms/test_mtp.py",)),
    ("hidden states in place of embeddings", "algorithms/mtp.py", "mtp_columns", "return", "[e, f.layer_norm(X, head.norm_x)]", "[f.layer_norm(X, head.norm_x), e]", ("algorithms/test_mtp.py",)),
    ("a head that reads the next document", "training/tasks/paper.py", "_d_mtp", "weights", "segments == next_tokens(segments)", "segments == segments", ("training/test_objectives.py",)),
    ("a draft accepted that is not the token", "training/generation/drafting.py", "extended.turn", "accepted", "y == state.draft", "y == y", ("training/generation/test_drafting.py",)),
    ("the key of the draft's token used again", "training/generation/drafting.py", "extended.turn", "y", "i + j", "i", ("training/generation/test_drafting.py",)),
    ("the weight of the head's loss left out", "algorithms/alg11_training.py", "d_training.theta_hat.theta_i.loss", "loss", "weight * mtp_token_losses", "mtp_token_losses", ("algorithms/test_mtp.py",)),
    ("branches of a tree that see each other", "algorithms/model/attention.py", "_among", "seen", "jnp.broadcast_to(mask, (*batch, m, m))", "jnp.ones((*batch, m, m), bool)", ("algorithms/test_cache.py",)),
    ("decays that begin a token too early", "algorithms/ops/delta_rule.py", "_after", "return", "jnp.roll(log_alpha, -1, axis=-2).at[..., -1, :].set(0)", "log_alpha", ("algorithms/test_delta_rule.py",)),
    ("a state of a token too late", "algorithms/model/mixer.py", "Mixer.steps.before", "return", "jnp.maximum(slot - 1, 0)", "slot", ("algorithms/test_cache.py",)),
    ("the system's message dropped with the oldest turn", "training/generation/talking.py", "Conversation._fitting", "messages", "messages[: turns[0]] +", "", ("scripts/test_chat_script.py",)),
    ("an answer beyond the context", "training/generation/talking.py", "Conversation._room", "return", "- len(tokens) + 1", "- len(tokens) + 9", ("scripts/test_chat_script.py",)),
    ("s left out", "training/tasks/low_rank.py", "merged.of_leaf", "return", "scale * (B @ A)", "B @ A", ("training/loop/test_low_rank.py",)),
    ("an adapter of another model taken", "training/runs/trained_model.py", "_adapted", "if", "frozen_fingerprint(theta) != description.fingerprints.get(FROZEN)", "False", ("training/loop/test_low_rank.py",)),
    ("scales of PEFT's matrices left out", "training/interchange/peft.py", "read", "for", " * np.float32(scales[module] / scale)", "", ("training/interchange/test_peft.py",)),
    ("an axis of vmap not counted", "algorithms/machinery/primitives.py", "_batched_named", "return", 'params["mapped"] + 1', 'params["mapped"]', ("algorithms/test_inside.py",)),
    ("the line of a caller named", "algorithms/machinery/naming.py", "_line", "path", "own[-1].last", "own[0].first", ("algorithms/test_inside.py",)),
    ("recorded again in the backward pass", "algorithms/inside/evaluation.py", "_is_computed_again", "return", 'eqn.params["differentiated"]', "not eqn.params", ("algorithms/test_inside.py",)),
    ("twice the change added", "algorithms/inside/parts.py", "edited", "replacement", "old + _of_turn", "old + 2 * _of_turn", ("algorithms/test_inside_changes.py",)),
    ("a while loop not steered", "algorithms/inside/evaluation.py", "Evaluator._while", "return", "self._turn(body.jaxpr, body.consts, [*of_body, *state], loops)[0]", "jaxpr_as_fun(body)(*of_body, *state)", ("algorithms/test_inside_changes.py",)),
    ("steps from the cache not steered", "training/generation/inside.py", "changed", "return", "intervene(decoding.decode, places)", "decoding.decode", ("training/generation/test_generation_inside.py",)),
    ("the lens without the last norm", "training/interpretability/lens.py", "unembedded", "X", 'f.layer_norm(X, theta.norm if is_decoder else theta.decoder_norm)', "X", ("training/interpretability/test_interpretability.py",)),
    ("queries and keys of the QK circuit exchanged", "training/interpretability/circuits.py", "qk_circuits", "return", '"lhad,lhae->lhde"', '"lhad,lhae->lhed"', ("training/interpretability/test_interpretability.py",)),
    ("a path through MLPs", "training/interpretability/patching.py", "path_patching", "received", "{**kept, sender: sent[sender]}", "{sender: sent[sender]}", ("training/interpretability/test_interpretability.py",)),
)
# fmt: on

BY_HAND = {
    name: (Edit(file, function, statement, old, new), tests)
    for name, file, function, statement, old, new, tests in _ROWS
}
"""What is wrong → the edit, and the files of tests/ of which one must notice."""
