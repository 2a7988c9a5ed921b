"""Apply a trained run: a decoder continues text, an encoder fills in [MASK], an encoder-decoder translates lines, a
classifier labels them.

    scripts/generate.py runs/docs --prompt "The "                     # streams a continuation
    scripts/generate.py runs/docs --prompt "The " --n 3 --tau 0.7 --top-p 0.9 --json
    echo "transformer" | scripts/generate.py runs/words --beam-size 4      # one line in, one line out
    scripts/generate.py runs/masked --prompt "to be or [MASK] to be"
    scripts/generate.py runs/diffusion --prompt "to be or" --l_gen 8 --steps 4         # masked diffusion
    scripts/generate.py runs/docs --interactive                       # continues each line that you type; see /help
    scripts/generate.py runs/smollm2 --chat --prompt "What is the capital of France?"
    scripts/generate.py runs/smollm2 --chat --interactive --system "You answer in verse."

Exit status: 0 done; 2 invalid usage or input; 130 after Ctrl-C.
"""

import argparse
import dataclasses
import io
import itertools
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence

from training.command_line import compilation_cache
from training.command_line.arguments import Parser, add_inference, add_markup, add_model, loading_of, type_of
from training.command_line.named_models import model_of
from training.command_line.running import called
from training.command_line.terminal import print_json, say, show, waiting
from training.data.chat import with_markup
from training.generation.talking import Conversation
from training.generation.text import MASK, Answer, Answerer, AnswerError, Options, answerer_for
from training.interchange.names import MODEL
from training.runs.interrupts import Interrupts
from training.system import edit_lines

LINES_AT_ONCE, RESET, QUIT, HELP = 32, "/reset", "/quit", "/help"
TOP_P = "sample from the fewest tokens with total probability X (default: 0.9 without --tau and --top-k)"
REPETITION = "divide positive logits of earlier tokens by X, and multiply negative ones (default: 1)"
KEEP = "read a prompt's final space (default: the continuation begins with a token that begins with a space)"
DRAFT = "let the model's head for the token after the next draft (speculative decoding): the same text in fewer passes"
HEALED = (
    "its final space is not read, and the continuation begins with a token that begins with a space, as words do in "
    "the training data; --keep-final-space reads it"
)
NAMES = [field.name for field in dataclasses.fields(Options) if field.name not in ("stop", "steer")]


def parser() -> Parser:
    """Return the command line."""
    main = Parser(description=__doc__)
    add = main.add_argument
    add("run", metavar="RUN", help=MODEL)
    add("--prompt", action="append", metavar="TEXT", help="a prompt; may be repeated (default: read stdin, or ask)")
    add("--interactive", action="store_true", help="answer line by line; a decoder remembers them until /reset")
    add("--chat", action="store_true", help="apply the model's chat template, for a model trained to converse")
    add("--system", metavar="TEXT", help="with --chat: the system message (default: the template's)")
    add("--json", action="store_true", help="print one JSON object per prompt")
    for flag, kind, text in (
        ("--n", int, "answers per prompt, or candidates per mask (default: 1)"),
        (
            "--l_gen",
            int,
            "maximum tokens of an answer (default: 200; with --chat, all that fit), or masks after a text",
        ),
        (
            "--steps",
            int,
            "fill an encoder's masks in N steps, the most confident first (default with --l_gen: one each)",
        ),
        ("--l_max", int, "maximum tokens of a translation (default: the model's l_max)"),
        ("--tau", float, "temperature; 0 is greedy (default: 0.7, for translations 0)"),
        ("--top-k", int, "sample from the N likeliest tokens only"),
        ("--top-p", float, TOP_P),
        ("--repetition-penalty", float, REPETITION),
        ("--no-repeat-ngram-size", int, "forbid repeating any n-gram of N tokens (default: allow)"),
        ("--beam-size", int, "beams of a translation (default: 1)"),
        ("--length-penalty", float, "rank beams by log P/((5 + length)/6)^X (default: 0.6)"),
        ("--seed", int, "random seed of the sampling (default: 0)"),
    ):
        add(flag, type=kind, metavar="N" if kind is int else "X", help=text)
    add("--stop", action="append", metavar="TEXT", help="end a continuation before this text; may be repeated")
    add("--draft", action="store_true", default=None, help=DRAFT)
    add("--keep-final-space", action="store_true", default=None, help=KEEP)
    add_inference(add)
    add_model(add)
    add_markup(add)
    return main


def options_of(arguments: argparse.Namespace) -> Options:
    """Return the options that were given, or raise AnswerError if one is invalid."""
    stop = tuple(arguments.stop) if arguments.stop else None
    if stop and "" in stop:
        raise AnswerError("--stop: expected some text, got none")
    return Options(**{name: getattr(arguments, name) for name in NAMES}, stop=stop)


def texts_of(arguments: argparse.Namespace, answerer: Answerer) -> Iterator[str]:
    """Yield the prompts, or stdin, line by line if the run takes lines."""
    if arguments.prompt is not None:
        yield from arguments.prompt
    elif answerer.takes_lines:
        yield from (line.rstrip("\n") for line in sys.stdin)
    else:
        yield "".join(sys.stdin)


def answer_all(answerer: Answerer, texts: Iterable[str], *, as_json: bool, lines: bool = False) -> bool:
    """Print the answers, batch by batch; return whether all texts had some. With `lines`, answer n is line n."""
    texts, complete, first, several = iter(texts), True, 1, False
    while batch := list(itertools.islice(texts, LINES_AT_ONCE)):
        several = several or len(batch) > 1
        with waiting("generating"):
            answered = _answers(answerer, batch, first, lines=lines)
        for number, (text, answers) in enumerate(zip(batch, answered, strict=True), first):
            complete = complete and answers is not None
            if as_json:
                print_json(text, answers or [])
            else:
                show_answers(answerer, answers or [{"text": ""}], number if several else 0)
        first += len(batch)
    return complete


def note_text(answerer: Answerer, text: str, number: int) -> None:
    """Print a note if a text's final space is not read, or most of it is outside the vocabulary."""
    if answerer.heals(text):
        say(f"note: text {number}: {HEALED}")
    tokenizer = answerer.tokenizer
    try:
        mostly_unknown = tokenizer.are_mostly_unknown(tokenizer.encode(text.replace(MASK, "")))
    except ValueError:  # raised again when the text is answered
        return
    if mostly_unknown:
        say(f"note: text {number}: more than half of its tokens are unknown to the run's tokenizer")


def show_answers(answerer: Answerer, answers: Sequence[Answer], number: int) -> None:
    """Print the answers to a text, numbered if there are several; `number` is the text's, 0 if it is the only one."""
    for i, answer in enumerate(answers, 1):
        several = len(answers) > 1
        if answerer.takes_lines:  # each answer is a line
            show(f"{i}\t{shown(answer)}" if several else shown(answer))
            continue
        parts = [f"prompt {number}"] * (number > 0) + [f"answer {i}"] * several
        if parts:
            print(f"--- {', '.join(parts)} ---")
        show(shown(answer))


def _answers(answerer: Answerer, texts: list[str], first: int, *, lines: bool) -> Sequence[list[Answer] | None]:
    """Return the answers to each text: [] for an empty line, and None for a line that cannot be answered."""
    for number, text in enumerate(texts, first):
        note_text(answerer, text, number)
    if not lines:
        return answerer.answers(texts, first=first)
    stand_in = next(filter(None, texts), "")  # for empty lines, so that requests keep their numbers
    if not stand_in:
        return [[] for _ in texts]
    try:
        answers = answerer.answers([text or stand_in for text in texts], first=first)
        return [found if text else [] for text, found in zip(texts, answers, strict=True)]
    except ValueError:
        if len(texts) == 1:
            raise
        return [_answer(answerer, text, number) for number, text in enumerate(texts, first)]


def _answer(answerer: Answerer, text: str, number: int) -> list[Answer] | None:
    try:
        return answerer.answers([text], first=number)[0] if text else []
    except ValueError as error:
        say(f"{called('generate')}: {error}")
        return None


def shown(answer: dict) -> str:
    """Return an answer as text; candidates of a mask and classes come with their probabilities."""
    lines = [answer["text"]]
    for number, candidates in enumerate(answer.get("masks", []), 1):
        if len(candidates) > 1:
            lines += [f"    mask {number}: {c['probability']:.4f} {c['text']!r}" for c in candidates]
    if "probabilities" in answer:
        lines = [f"{answer['text']}\t{answer['probabilities'][answer['text']]:.4f}"]
    return "\n".join(lines)


def answer_one(answerer: Answerer, text: str, number: int = 1) -> str:
    """Stream the answer to one text, and return it."""
    note_text(answerer, text, number)
    pieces = []
    for piece in _awaited(answerer.stream(text, number=number)):
        pieces.append(piece)
        show(piece, end="")
    print(flush=True)
    return "".join(pieces)


def _awaited(pieces: Iterator[str]) -> Iterator[str]:
    """Yield the pieces, with a bar until the first, which may have to be compiled."""
    with waiting("compiling, and reading the prompt"):
        first = next(pieces, "")
    yield first
    yield from pieces


def typed(*, converses: bool = False) -> Iterator[str]:
    """Yield the lines of standard input; on a terminal, with instructions, line editing, history and commands."""
    if not sys.stdin.isatty():
        yield from sys.stdin
        return
    commands = f"{f'{RESET} starts a new conversation, ' if converses else ''}{HELP} shows this, {QUIT} or Ctrl-D ends"
    say(f"One prompt per line; {commands}.")
    edit_lines()
    while True:
        try:
            line = input("> ")
        except EOFError:
            print()
            return
        if line.strip() == QUIT:
            return
        if line.strip() == HELP:
            say(f"One prompt per line; {commands}.")
        else:
            yield line


def converse(answerer: Answerer, *, as_json: bool, several: bool) -> None:
    """Answer line by line; a decoder reads all since `RESET`, and continues its last answer after an empty line."""
    history = ""
    for number, line in enumerate(typed(converses=answerer.converses), 1):
        text = line.rstrip("\n")
        if answerer.converses and text.strip() == RESET:
            history = ""
            continue
        prompt = f"{history}\n{text}" if history and text else history + text
        try:
            answered = converse_once(answerer, prompt, number, as_json=as_json, several=several)
        except ValueError as error:
            say(f"{called('generate')}: {error}")
            continue
        if answerer.converses:
            history = prompt + answered


def converse_once(answerer: Answerer, prompt: str, number: int, *, as_json: bool, several: bool) -> str:
    """Print the answers to one text, and return the first."""
    if answerer.streams and not as_json and not several:
        return answer_one(answerer, prompt, number)
    note_text(answerer, prompt, number)
    with waiting("generating"):
        (answers,) = answerer.answers([prompt], first=number)
    if as_json:
        print_json(prompt, answers)
    else:
        show_answers(answerer, answers, 0)
    return answers[0]["text"]


def talk(talker: Conversation, lines: Iterable[str], *, as_json: bool) -> None:
    """Answer the lines one by one, as a conversation, with a message for a line that cannot be answered."""
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
            say(f"{called('generate')}: {error}")
            continue
        if dropped:
            context = f"the model's context of l_max = {talker.config.l_max} tokens"
            say(f"note: the conversation has outgrown {context}: its oldest {dropped} messages are dropped")
        if as_json or talker.n > 1:
            answers = talker.replies(number=number)
            print_json(text, answers) if as_json else show_answers(talker, answers, 0)
        else:
            _stream(talker, number)


def _stream(talker: Conversation, number: int) -> None:
    """Stream an answer; Ctrl-C stops it, and the conversation keeps what was printed."""
    with Interrupts() as interrupts:
        pieces = talker.reply(number=number)
        for piece in _awaited(pieces):
            show(piece, end="")
            if interrupts.status:
                break
        pieces.close()
        print(flush=True)
    if interrupts.status == 128 + signal.SIGTERM:
        signal.raise_signal(signal.SIGTERM)
    if talker.is_cut:
        say(f"note: the answer ends where the model's context of l_max = {talker.config.l_max} tokens is full")


def answerer_of(arguments: argparse.Namespace, options: Options) -> Answerer:
    """Return the run's answerer, which converses if asked for. Raises ValueError if it cannot."""
    run = model_of(arguments.run, **loading_of(arguments))
    if type_of(run.theta) != "float32":
        say(f"note: computes in {type_of(run.theta)}")
    if not arguments.chat:
        return answerer_for(run, options)
    if run.task != "d":
        raise AnswerError(f"--chat: expected a decoder, got {arguments.run}, a run of task {run.task}")
    if arguments.messages_are_markup:
        run = run._replace(tokenizer=with_markup(run.tokenizer))
    return Conversation(run, options, system=arguments.system)


@compilation_cache.command(parser)
def main(arguments: argparse.Namespace) -> int:
    """Answer the prompts; return the exit status. Raises ValueError if the run or an option is invalid."""
    if isinstance(sys.stdin, io.TextIOWrapper):  # invalid UTF-8 raises only when its line is answered
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
    options = options_of(arguments)
    of_chat = {"--system": arguments.system is not None, "--messages-are-markup": arguments.messages_are_markup}
    for flag, given in of_chat.items():
        if given and not arguments.chat:
            raise AnswerError(f"{flag}: expected --chat with it, got none; add --chat, or leave it out")
    if arguments.interactive and arguments.prompt:
        raise AnswerError("--interactive and --prompt exclude each other")
    answerer = answerer_of(arguments, options)
    if arguments.prompt is None and not arguments.interactive and sys.stdin.isatty():
        say("Prompt (--interactive asks again and again):")
        arguments.prompt = [sys.stdin.readline().removesuffix("\n")]
    several = options.n is not None and options.n > 1
    one_text = len(arguments.prompt) == 1 if arguments.prompt else not answerer.takes_lines
    complete, drafter = True, getattr(answerer, "drafter", None)
    if arguments.interactive and isinstance(answerer, Conversation):
        talk(answerer, typed(converses=True), as_json=arguments.json)
    elif arguments.interactive:
        converse(answerer, as_json=arguments.json, several=several)
    elif answerer.streams and not arguments.json and not several and one_text:
        answer_one(answerer, next(texts_of(arguments, answerer)))
    else:
        lines = not arguments.prompt and answerer.takes_lines
        texts = texts_of(arguments, answerer)
        complete = answer_all(answerer, texts, as_json=arguments.json, lines=lines)
    if drafter is not None:
        say(f"note: {drafter.acceptance}")
    return 0 if complete else 2
