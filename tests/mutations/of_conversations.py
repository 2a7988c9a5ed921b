"""Wrong edits of what people's models go through: files of GGUF, templates, conversations, and adapters of low rank."""

from .mutation import Mutation

__all__ = ["CONVERSATION_MUTATIONS"]

MODELS = "training/interchange/gguf_models.py"
FILE = "training/interchange/gguf_file.py"
CHAT = "training/data/chat.py"
PREFIXES = "training/generation/prefixes.py"
TALKING = "training/generation/talking.py"
LOW_RANK = "training/tasks/low_rank.py"
GGUF = "tests/training/interchange/test_gguf.py"
OF_LLAMA = (f"{GGUF}::test_a_model_is_what_transformers_has[llama]",)
OF_GEMMA = (f"{GGUF}::test_a_model_is_what_transformers_has[gemma]",)
NUMBERS = (f"{GGUF}::test_numbers_are_those_that_gguf_dequantizes[Q8_0-200]",)
HOSTILE = (f"{GGUF}::test_a_hostile_file_is_refused_in_a_sentence",)
ANSWERS = ("tests/training/data/test_chat.py::test_knows_where_the_answers_are",)
REACHES = ("tests/training/data/test_chat.py::test_a_template_that_loops_or_reaches_out_is_refused_in_a_sentence",)
ORDER = ("tests/training/data/test_conversations.py::test_what_is_not_a_conversation_is_said_with_its_line",)
MARKED = ("tests/training/data/test_conversations.py::test_what_chatml_marks_is_the_answer_and_its_end",)
READ_ON = ("tests/training/generation/test_prefixes.py::test_keys_and_values_are_those_of_one_reading",)
IN_PART = (
    "tests/training/generation/test_prefixes.py::test_some_of_a_batch_are_known_in_part_and_the_tokens_are_the_same",
)
SCRIPT = "tests/scripts/test_chat_script.py"
OUTGROWN = (f"{SCRIPT}::test_a_conversation_that_outgrows_the_context_drops_its_oldest_turns_and_says_so",)
RANK = "tests/training/loop/test_low_rank.py"
MERGED = (f"{RANK}::test_merged_adds_s_times_the_product_head_by_head",)
OTHER = (f"{RANK}::test_a_model_that_is_gone_or_has_changed_is_said",)
PEFT = ("tests/training/interchange/test_peft.py::test_an_adapter_of_peft_becomes_a_run_and_goes_back",)

CONVERSATION_MUTATIONS: dict[str, Mutation] = {
    "rows of q and k in the order of GGUF": Mutation(
        MODELS, "_unpermuted", "return", "halves.swapaxes(1, 2)", "halves", 10, None, OF_LLAMA
    ),
    "rows of k by the heads of q": Mutation(
        MODELS,
        "GGUFTensors.__init__",
        "heads",
        '"attn_k": "num_key_value_heads"',
        '"attn_k": "num_attention_heads"',
        10,
        None,
        OF_LLAMA,
    ),
    "the 1 in Gemma's norms kept": Mutation(
        MODELS, "GGUFTensors.__init__.read", "return", "array - np.float32(1)", "array", 10, None, OF_GEMMA
    ),
    "tensors of GGUF from the beginning of the file": Mutation(
        FILE, "_placed", "info", "begin + offset", "offset", 10, None, NUMBERS
    ),
    "lengths in GGUF believed": Mutation(
        FILE, "_Header._take", "if", "n_bytes > len(self._data) - self.at", "False", 10, None, HOSTILE
    ),
    "ends of tensors in GGUF believed": Mutation(FILE, "_placed", "if", "info.end > size", "False", 10, None, HOSTILE),
    "a template outside the sandbox": Mutation(
        "training/data/chat_worker.py",
        "compiled",
        "environment",
        "jinja2.sandbox.ImmutableSandboxedEnvironment",
        "jinja2.Environment",
        14,
        None,
        REACHES,
    ),
    "an answer without its end token": Mutation(
        CHAT, "ChatTemplate._span", "return", "min(ends)[1]", "min(ends)[0]", 13, None, ANSWERS
    ),
    "a wrong order of messages taken": Mutation(
        "training/data/conversations.py", "_check_order", "if", 'roles[-1] != "assistant"', "False", 13, None, ORDER
    ),
    "loss on what the user says": Mutation(
        "training/data/conversations.py",
        "Answers.encode",
        "answered",
        "(begins < end) & (ends > begin)",
        "ends > 0 * begin",
        13,
        None,
        MARKED,
    ),
    "texts that part a token later": Mutation(
        PREFIXES, "_shared", "return", "int(differ.argmax())", "1 + int(differ.argmax())", 14, None, IN_PART
    ),
    "positions from 0 after what was read": Mutation(
        PREFIXES,
        "Prefixes._read_on",
        "t",
        "np.arange(start, start + at_once)",
        "np.arange(at_once)",
        14,
        None,
        READ_ON,
    ),
    "the system's message dropped with the oldest turn": Mutation(
        TALKING, "Talker._fitting", "messages", "messages[: turns[0]] +", "", 14, None, OUTGROWN
    ),
    "an answer beyond the context": Mutation(
        TALKING, "Talker._room", "return", "- len(tokens) + 1", "- len(tokens) + 9", 14, None, OUTGROWN
    ),
    "s left out": Mutation(LOW_RANK, "merged.of_leaf", "return", "scale * (B @ A)", "B @ A", 13, None, MERGED),
    "an adapter of another model taken": Mutation(
        "training/runs/directory.py",
        "_adapted",
        "if",
        "frozen_fingerprint(theta) != description.fingerprints.get(FROZEN)",
        "False",
        13,
        None,
        OTHER,
    ),
    "scales of PEFT's matrices left out": Mutation(
        "training/interchange/peft.py",
        "read",
        "B_all[entry.layer, :, :len(A)]",
        "* np.float32(scales[module] / scale)",
        "",
        13,
        None,
        PEFT,
    ),
}
"""What was changed → the edit."""
