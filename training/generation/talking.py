"""Conversations with a decoder that was trained to converse, by its chat template."""

from collections.abc import Generator, Sequence

from training.data.chat import Message, converser, ends_of_turn
from training.generation.pieces import Ends, pieces_of
from training.generation.prefixes import Prefixes
from training.generation.requests import Prompt
from training.generation.text import Answer, AnswerError, Continuer, Options
from training.runs.directory import Run

ROOM = 4  # oldest turns are dropped until an answer has a quarter of the context, or all the tokens that it may have


class Conversation(Continuer):
    """A conversation, in which each turn reads only its new tokens, and answers to single texts."""

    model = "a decoder that converses"
    verb = "answer"
    applicable = tuple(name for name in Continuer.applicable if name != "keep_final_space")

    def __init__(self, run: Run, options: Options, *, system: str | None = None) -> None:
        """Open a conversation with a system message (None: the template's). Raises DataError without a template."""
        self._converse = converser(run.tokenizer)
        super().__init__(run, options)
        self.ends = Ends.of(run.tokenizer, options.stop or (), ends_of_turn(run.tokenizer))
        self._opening: list[Message] = [] if system is None else [{"role": "system", "content": system}]
        if Prefixes.serve(run.config.variant):
            self.generator.prefixes = Prefixes.for_texts(2, run.theta, run.config)
        self.reset()

    def reset(self) -> None:
        """Begin a new conversation."""
        self.messages: list[Message] = list(self._opening)
        self.is_cut = False  # whether the last answer ended where the context was full

    def heals(self, text: str) -> bool:
        """Return False: a message is read whole."""
        return False

    def prompt(self, text: str, *, number: int = 1) -> Prompt:
        """Return a text as the first message of a conversation. Raises ValueError if it is empty or too long."""
        if not text.strip():
            raise AnswerError(f"text {number} is empty: give some text to answer")
        return Prompt(self._fitting([*self._opening, {"role": "user", "content": text}])[1], answers=True)

    def answers(self, texts: Sequence[str], *, first: int = 1) -> list[list[Answer]]:
        """See `Answerer.answers`; each answer may fill the context."""
        each = (super(Conversation, self).answers([text], first=i) for i, text in enumerate(texts, first))
        return [answers for (answers,) in each]

    def hear(self, text: str) -> int:
        """Add the user's next message; return how many old ones were dropped. ValueError leaves all as it was."""
        before = len(self.messages) + 1
        self.messages, self._tokens = self._fitting([*self.messages, {"role": "user", "content": text}])
        return before - len(self.messages)

    def reply(self, *, number: int = 1) -> Generator[str, None, None]:
        """Yield the pieces of the next answer; if it is closed early, the pieces so far are the answer."""
        prompt = Prompt(self._tokens, answers=True)
        continuation = self._begun([prompt], number)
        pieces = []
        try:
            tokens = (int(column[0]) for column in continuation.columns())
            for piece in pieces_of(tokens, self._pieces(prompt), self.ends.tokens):
                pieces.append(piece)
                yield piece
        finally:
            continuation.keep(0)
            ends = {*self.ends.tokens} & {*continuation.tokens[0].tolist()}
            self.is_cut = not ends and continuation.tokens.shape[1] == self._room(self._tokens)
            self._say("".join(pieces))

    def replies(self, *, number: int = 1) -> list[Answer]:
        """Return the next answers; the conversation continues with the first."""
        (answers,) = self._answers([Prompt(self._tokens, answers=True)], number)
        self._say(answers[0]["text"])
        return answers

    def _say(self, text: str) -> None:
        self.messages.append({"role": "assistant", "content": text})

    def _fitting(self, messages: list[Message]) -> tuple[list[Message], list[int]]:
        """Return a conversation without the oldest turns that do not fit into the context, and its tokens."""
        l_max = self.config.l_max
        least = min(l_max // ROOM, self.options.l_gen or l_max)
        while True:
            tokens = self._converse(messages)
            turns = [i for i, message in enumerate(messages) if message["role"] == "user"]
            if self._room(tokens) >= least or (len(turns) == 1 and self._room(tokens) > 0):
                return messages, tokens
            if len(turns) == 1:
                raise AnswerError(
                    f"the message has {len(tokens)} tokens, including those of the chat template, but the model reads "
                    f"at most l_max = {l_max}: shorten it"
                )
            messages = messages[: turns[0]] + messages[turns[1] :]

    def _room(self, tokens: Sequence[int]) -> int:
        return self.config.l_max - len(tokens) + 1  # the last token of an answer is not read

    def _l_gen(self, prompts: Sequence[Prompt]) -> int:
        """Return the most tokens of an answer: as requested, but no more than the context has room for."""
        room = min(self._room(prompt.tokens) for prompt in prompts)
        return room if self.options.l_gen is None else min(room, self.options.l_gen)
