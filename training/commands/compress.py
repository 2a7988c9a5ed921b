"""Compress a text with a trained decoder, and decompress it: prediction is compression.

    scripts/compress.py RUN compress book.txt book.fat
    scripts/compress.py RUN decompress book.fat book.txt
    scripts/compress.py RUN report book.txt                # prints the bits per byte, and those of xz and bzip2

A file is decompressed by the same run, on the machine that compressed it. Exit status: 0 done; 2 invalid usage or
input; 130 after Ctrl-C.
"""

import argparse
from pathlib import Path
from typing import Any

from algorithms import DTransformerConfig
from training.command_line import compilation_cache
from training.command_line.arguments import Parser, add_model, local
from training.command_line.named_models import run_of
from training.compression import CompressionError, compress, decompress
from training.disk import reason, write_atomically
from training.evaluation.baselines import compressed_bits_per_byte
from training.generation import Generator
from training.generation.gato import of_text
from training.interchange.names import MODEL
from training.runs.trained_model import load_run


def parser() -> Parser:
    """Return the command line."""
    main = Parser(description=__doc__)
    main.add_argument("run", metavar="RUN", help=f"a decoder: {MODEL}")
    actions = main.add_subparsers(dest="action", required=True, metavar="{compress,decompress,report}")
    for name, help_text in (
        ("compress", "compress a text file"),
        ("decompress", "restore the text of a compressed file"),
        ("report", "print the bits per byte of a text file, and write nothing"),
    ):
        action = actions.add_parser(name, help=help_text)
        action.add_argument("input", metavar="IN", type=local)
        if name != "report":
            action.add_argument("output", metavar="OUT", type=local)
            action.add_argument("--force", action="store_true", help="overwrite OUT if it exists")
    add_model(main.add_argument)
    return main


@compilation_cache.command(parser)
def main(arguments: argparse.Namespace) -> None:
    """Compress or decompress, or raise ValueError if the run or the file cannot be used."""
    model: Any = load_run(run_of(arguments.run), lines=arguments.lines)
    model = of_text(model) if model.task == "gato" else model
    if not isinstance(model.config, DTransformerConfig):
        raise CompressionError(f"{arguments.run}: expected a decoder's run (task d), got one of task {model.task}")
    if arguments.action != "report" and not arguments.force and arguments.output.is_file():
        raise CompressionError(
            f"{arguments.output}: expected a new file, got an existing one; name another, or add --force"
        )
    try:
        data = arguments.input.read_bytes()
    except OSError as error:
        raise CompressionError(f"cannot read {arguments.input}: {reason(error)}") from None
    generator = Generator(model.theta, model.config)
    if arguments.action == "decompress":
        write(arguments.output, decompress(data, generator, model.tokenizer).encode())
        return
    if not data:
        raise CompressionError(f"{arguments.input}: expected text to compress, got an empty file")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise CompressionError(f"{arguments.input}: expected UTF-8, got something else at byte {error.start}") from None
    compressed = compress(text, generator, model.tokenizer)
    if arguments.action == "compress":
        write(arguments.output, compressed)
    print(f"{len(data)} bytes of text, {len(compressed)} compressed; bits per byte:")
    for name, bits in {"this model": 8 * len(compressed) / len(data), **compressed_bits_per_byte(data)}.items():
        print(f"    {name:<12}{bits:.3f}")


def write(path: Path, data: bytes) -> None:
    """Write a file, or raise CompressionError if it cannot be written."""
    try:
        if path.exists() and (path.is_symlink() or not path.is_file()):  # such as /dev/stdout
            path.write_bytes(data)
        else:
            write_atomically(path, lambda unfinished: unfinished.write_bytes(data))
    except OSError as error:
        raise CompressionError(f"cannot write {path}: {reason(error)}") from None
