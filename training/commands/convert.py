"""Convert a checkpoint of another library to a directory that every script takes as it takes a run, and back.

    scripts/convert.py gpt2-directory runs/gpt2          # config.json and safetensors, or a file of PyTorch's
    scripts/convert.py model.gguf runs/model             # of llama.cpp and Ollama, with its tokenizer and chat template
    scripts/convert.py runs/docs out --to gpt2           # opens in transformers
    scripts/convert.py hf:openai-community/gpt2 runs/gpt2    # downloads first
    scripts/convert.py runs/taught out --merge           # a run with an adapter: one checkpoint
    scripts/convert.py runs/taught adapter               # or the adapter alone, in PEFT's files
    scripts/convert.py adapter runs/taught --from runs/model     # and back: the adapter of this model

Exit status: 0 done; 2 wrong usage or input, and nothing is written; 130 after Ctrl-C.
"""

from collections.abc import Sequence
from pathlib import Path

from training.commands import compilation_cache
from training.commands.arguments import Parser, add_dtype
from training.commands.bar import Bar
from training.commands.terminal import show
from training.interchange import convert
from training.interchange.architectures import ARCHITECTURES
from training.interchange.hub import HUB, downloaded


def parser() -> Parser:
    """Return the command line."""
    main = Parser(description=__doc__)
    main.add_argument(
        "source", metavar="IN", help=f"a checkpoint's directory, {HUB}NAME to download one, a file of GGUF, or a run"
    )
    main.add_argument("target", metavar="OUT", type=Path, help="the directory to write; it must not exist, or be empty")
    main.add_argument("--to", choices=ARCHITECTURES, help="the kind of checkpoint to write (default: what fits a run)")
    add_dtype(main.add_argument)
    main.add_argument(
        "--merge", action="store_true", help="write a run's adapter merged into its model, and not in PEFT's files"
    )
    main.add_argument("--from", dest="adapted", metavar="RUN", help="the model that an adapter of PEFT's is for")
    compilation_cache.add_flags(main)
    return main


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    arguments = parser().parse_args(argv)
    compilation_cache.begin(arguments)
    with downloaded(arguments.source) as source:
        options = {"to": arguments.to, "dtype": arguments.dtype, "merge": arguments.merge, "adapted": arguments.adapted}
        with Bar("reading") as bar:
            done = convert(source, arguments.target, **options, progress=bar.advance)
        show(done)
    return 0
