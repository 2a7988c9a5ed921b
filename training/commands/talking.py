"""A conversation on the terminal: `generate.py runs/smollm2 --chat --interactive`."""

import json
import signal
from collections.abc import Iterable

from training.commands.terminal import say, show
from training.generation.talking import Talker
from training.runs.interrupts import Interrupts

RESET = "/reset"


def talk(talker: Talker, lines: Iterable[str], *, as_json: bool) -> None:
    """Answer line after line until they end; a line that cannot be answered is complained about."""
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
            of_l_max = f"the model's context of l_max = {talker.config.l_max} tokens"
            say(f"note: the conversation has outgrown {of_l_max}: its oldest {dropped} messages are dropped")
        if as_json or talker.n > 1:
            _answer(talker, text, number, as_json=as_json)
        else:
            _stream(talker, number)


def _answer(talker: Talker, text: str, number: int, *, as_json: bool) -> None:
    answers = talker.replies(number=number)
    if as_json:
        print(json.dumps({"prompt": text, "answers": answers}, ensure_ascii=False), flush=True)
        return
    for i, answer in enumerate(answers, 1):
        print(f"--- answer {i} ---")
        show(answer["text"])


def _stream(talker: Talker, number: int) -> None:
    """Print an answer as it comes; Ctrl-C ends it, and it counts as far as it came."""
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
