"""Use a trained run: a decoder continues text, an encoder fills [MASK], an encoder-decoder translates lines, a
classifier names their class.

    scripts/generate.py runs/docs --prompt "The "                     # streams a continuation
    scripts/generate.py runs/docs --prompt "The " --n 3 --tau 0.7 --top-p 0.9 --json
    echo "transformer" | scripts/generate.py runs/words --beam-size 4      # one line in, one line out
    scripts/generate.py runs/masked --prompt "to be or [MASK] to be"
    scripts/generate.py runs/docs --interactive                       # the model stays loaded

Exit status: 0 done; 2 wrong usage or input; 130 after Ctrl-C.
"""

import argparse
import itertools
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a checkout needs no installation

from training.generation.text import Answerer, AnswerError, Options, answerer_for
from training.runs.directory import load_run

LINES_AT_ONCE = 32


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    main = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = main.add_argument
    add("run", metavar="RUN", help="directory of the run")
    add("--prompt", action="append", metavar="TEXT", help="a text; may be repeated (default: what comes on stdin)")
    add("--interactive", action="store_true", help="answer line after line, with the model kept loaded")
    add("--json", action="store_true", help="print a JSON object for each text")
    add("--n", type=int, metavar="N", help="answers to each text, or likeliest tokens of each mask (default: 1)")
    add("--l_gen", type=int, metavar="N", help="most tokens of a continuation (default: 200, or what l_max leaves)")
    add("--l_max", type=int, metavar="N", help="most tokens of a translation (default: the model's l_max)")
    add("--tau", type=float, metavar="X", help="temperature, 0 for greedy (default: 0.8; for translations 0)")
    add("--top-k", type=int, metavar="N", help="draw from the N likeliest tokens only")
    add("--top-p", type=float, metavar="X", help="draw from the fewest tokens that have probability X together")
    add("--beam-size", type=int, metavar="N", help="translations to keep in a beam search (default: 1)")
    add("--length-penalty", type=float, metavar="X", help="of a beam search: log P/((5 + length)/6)^X (default: 0.6)")
    add("--seed", type=int, metavar="N", help="decides what is drawn (default: 0)")
    add("--stop", action="append", metavar="TEXT", help="end a continuation before this text; may be repeated")
    return main


def options_of(arguments: argparse.Namespace) -> Options:
    """Return the options that were given."""
    names = ("n", "l_gen", "l_max", "tau", "top_k", "top_p", "beam_size", "length_penalty", "seed")
    stop = tuple(arguments.stop) if arguments.stop else None
    if stop and "" in stop:
        raise AnswerError("--stop: expected some text, got none")
    return Options(**{name: getattr(arguments, name) for name in names}, stop=stop)


def texts_of(arguments: argparse.Namespace, answerer: Answerer) -> Iterator[str]:
    """Yield the texts to answer: the prompts, or stdin, line by line where the run takes lines."""
    if arguments.prompt is not None:
        yield from arguments.prompt
    elif answerer.takes_lines:
        yield from (line.rstrip("\n") for line in sys.stdin)
    else:
        yield sys.stdin.read()


def answer_all(answerer: Answerer, texts: Iterable[str], *, as_json: bool) -> None:
    """Print the answers, some texts at once."""
    texts, first = iter(texts), 1
    while some := list(itertools.islice(texts, LINES_AT_ONCE)):
        for text, answers in zip(some, answerer.answers(some, first=first), strict=True):
            if as_json:
                print(json.dumps({"prompt": text, "answers": answers}, ensure_ascii=False), flush=True)
                continue
            for answer in answers:
                print(shown(answer), flush=True)
        first += len(some)


def shown(answer: dict) -> str:
    """Return an answer as text: for several candidates of a mask, and for a class, with their probabilities."""
    lines = [answer["text"]]
    for number, candidates in enumerate(answer.get("masks", []), 1):
        if len(candidates) > 1:
            lines += [f"    mask {number}: {c['probability']:.4f} {c['text']!r}" for c in candidates]
    if "probabilities" in answer:
        lines = [f"{answer['text']}\t{answer['probabilities'][answer['text']]:.4f}"]
    return "\n".join(lines)


def answer_one(answerer: Answerer, text: str) -> None:
    """Print the answer to one text as it comes."""
    for piece in answerer.stream(text):
        print(piece, end="", flush=True)
    print(flush=True)


def converse(answerer: Answerer, *, as_json: bool, several: bool) -> None:
    """Answer line after line until the input ends; a line that cannot be answered is complained about."""
    asking = sys.stdin.isatty()
    while True:
        if asking:
            print("> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        try:
            if as_json or several or not answerer.streams:
                answer_all(answerer, [line.rstrip("\n")], as_json=as_json)
            else:
                answer_one(answerer, line.rstrip("\n"))
        except ValueError as error:
            print(f"generate.py: {error}", file=sys.stderr, flush=True)


def run(arguments: argparse.Namespace) -> None:
    """Answer what was asked.

    Raises:
        ValueError: there is no such run, or a text or an option is wrong.
    """
    options = options_of(arguments)
    model = load_run(arguments.run)
    answerer = answerer_for(model, options)
    several = options.n is not None and options.n > 1
    if arguments.interactive:
        if arguments.prompt:
            raise AnswerError("--interactive reads its texts from the terminal: leave --prompt out")
        converse(answerer, as_json=arguments.json, several=several)
    elif answerer.streams and not arguments.json and not several and is_one_text(arguments, answerer):
        answer_one(answerer, next(texts_of(arguments, answerer)))
    else:
        answer_all(answerer, texts_of(arguments, answerer), as_json=arguments.json)


def is_one_text(arguments: argparse.Namespace, answerer: Answerer) -> bool:
    """Return whether it is known that there is one text only."""
    return len(arguments.prompt) == 1 if arguments.prompt else not answerer.takes_lines


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    arguments = parser().parse_args(argv)
    try:
        run(arguments)
    except ValueError as error:
        print(f"generate.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
