"""Convert another library's checkpoint to a run that every script accepts, or a run to another library's checkpoint.

    scripts/convert.py gpt2-directory runs/gpt2          # config.json with safetensors or a PyTorch file
    scripts/convert.py model.gguf runs/model             # from llama.cpp or Ollama, with tokenizer and chat template
    scripts/convert.py runs/docs out --to gpt2           # opens in transformers
    scripts/convert.py runs/llama llama.gguf             # or --to gguf: opens in llama.cpp and Ollama
    scripts/convert.py runs/llama llama.gguf --quantize Q8_0      # a quarter of the size
    scripts/convert.py runs/mine out --to run --dtype bfloat16    # a run, also with custom lines
    scripts/convert.py hf:openai-community/gpt2 runs/gpt2    # downloads first
    scripts/convert.py runs/taught out --merge           # a run with an adapter, as one checkpoint
    scripts/convert.py runs/taught adapter               # the adapter alone, in PEFT's format
    scripts/convert.py adapter runs/taught --from runs/model     # a PEFT adapter of this model, as a run

Exit status: 0 done; 2 invalid usage or input, nothing written; 130 after Ctrl-C.
"""

import argparse

from training.command_line import compilation_cache
from training.command_line.arguments import Parser, add_dtype, add_lines, local
from training.command_line.terminal import Bar, show
from training.interchange import convert
from training.interchange.architectures import ARCHITECTURES
from training.interchange.gguf_writing import QUANTIZED
from training.interchange.hub import downloaded, origin_of
from training.interchange.pretrained import GGUF, RUN


def parser() -> Parser:
    """Return the command line."""
    main = Parser(description=__doc__)
    add = main.add_argument
    source = "a checkpoint's directory, hf:NAME or hf:NAME@REVISION to download one, a GGUF file, or a run"
    add("source", metavar="IN", help=source)
    add("target", metavar="OUT", type=local, help="new directory or GGUF file to write, or an empty directory")
    kinds = f"kind of files to write: {RUN}, {GGUF}, or transformers' model_type, such as gpt2 (default: what fits)"
    add("--to", choices=(*ARCHITECTURES, RUN, GGUF), metavar="KIND", help=kinds)
    add("--quantize", choices=QUANTIZED, help="round the matrices of a GGUF file to this type (default: keep theirs)")
    add_dtype(add)
    merge = "merge a run's adapter into its model (default: write it in PEFT's format)"
    add("--merge", action="store_true", help=merge)
    add("--from", dest="adapted", metavar="RUN", type=local, help="the model of a PEFT adapter")
    add_lines(add)
    return main


@compilation_cache.command(parser)
def main(arguments: argparse.Namespace) -> None:
    """Run the command line."""
    source = downloaded(arguments.source)
    options = {"to": arguments.to, "dtype": arguments.dtype, "merge": arguments.merge, "adapted": arguments.adapted}
    options |= {"quantize": arguments.quantize, "lines": arguments.lines}
    with Bar("reading") as bar:
        origin = origin_of(arguments.source, source)
        done = convert(source, arguments.target, **options, origin=origin, progress=bar.advance)
    show(done)
