"""Look inside a trained run as it reads a prompt: one self-contained HTML page.

    scripts/look_inside.py runs/docs --prompt "The list is sorted. The list"
    scripts/look_inside.py runs/docs --prompt "The file is" --against "The list is"

The page shows the attention pattern of each layer and head, each layer's prediction, how much each head and MLP
contributed to the answer, and what heads do on any text; with --against, also which activations of the prompt, patched
into the other prompt's pass, restore its answer. Exit status: 0 done; 2 invalid usage or input.
"""

import argparse
from pathlib import Path

from training.command_line import compilation_cache
from training.command_line.arguments import Parser, add_model, local
from training.command_line.named_models import run_of
from training.command_line.terminal import waiting
from training.disk import write_atomically
from training.interchange.names import MODEL
from training.interpretability.page import PageError, look
from training.runs.trained_model import load_run


def parser() -> Parser:
    """Return the command line."""
    main = Parser(description=__doc__)
    add = main.add_argument
    add("run", metavar="RUN", help=MODEL)
    add(
        "--prompt",
        required=True,
        metavar="TEXT",
        help="text to read; an encoder-decoder also decodes an answer",
    )
    add("--against", metavar="TEXT", help="another prompt of as many tokens, for activation patching")
    add("--chat", action="store_true", help="put the prompts into the model's chat template, as user messages")
    add("--out", metavar="DIR", type=local, help="directory for page.html (default: RUN/inside)")
    add_model(add)
    return main


@compilation_cache.command(parser)
def main(arguments: argparse.Namespace) -> None:
    """Run the command line."""
    folder = run_of(arguments.run)
    run = load_run(folder, lines=arguments.lines)
    try:
        name = Path(arguments.run).name or str(folder.resolve())
        with waiting("computing the page"):
            found = look(run, arguments.prompt, against=arguments.against, chat=arguments.chat, name=name)
        page = found.html()
    except PageError as error:
        raise PageError(f"--{error}") from None
    out = arguments.out or folder / "inside"
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / "page.html", lambda file: file.write_text(page, encoding="utf-8"))
    print(out / "page.html")
