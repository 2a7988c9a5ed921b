"""A conversation on the terminal: `generate.py runs/smollm2 --chat --interactive`."""

import signal
from collections.abc import Iterable

from training.commands.terminal import print_json, say, show
from training.generation.talking import Talker
from training.runs.interrupts import Interrupts

RESET = "/reset"


def talk(talker: Talker, lines: Iterable[str], *, as_json: bool) -> None:
    """Answer the lines one by one, with a message for a line that cannot be answered."""
    for number, line in enumerate(lines, 1):
        text = line.rstrip("\n")
        if not text.strip():
            continue
        if text.strip() == RESET:
            talker.reset()
            continue
        try:
            dropped = talker.hear(text)
        except ValueError as error:
            say(f"generate.py: {error}")
            continue
        if dropped:
            context = f"the model's context of l_max = {talker.config.l_max} tokens"
            say(f"note: the conversation has outgrown {context}: its oldest {dropped} messages are dropped")
        if as_json or talker.n > 1:
            _answer(talker, text, number, as_json=as_json)
        else:
            _stream(talker, number)


def _answer(talker: Talker, text: str, number: int, *, as_json: bool) -> None:
    answers = talker.replies(number=number)
    if as_json:
        print_json(text, answers)
        return
    for i, answer in enumerate(answers, 1):
        print(f"--- answer {i} ---")
        show(answer["text"])


def _stream(talker: Talker, number: int) -> None:
    """Stream an answer; Ctrl-C stops it, and the conversation keeps what was printed."""
    with Interrupts() as interrupts:
        pieces = talker.reply(number=number)
        for piece in pieces:
            show(piece, end="")
            if interrupts.status:
                break
        pieces.close()
        print(flush=True)
    if interrupts.status == 128 + signal.SIGTERM:
        signal.raise_signal(signal.SIGTERM)
    if talker.is_cut:
        say(f"note: the answer ends where the model's context of l_max = {talker.config.l_max} tokens is full")
