r"""Serve a trained decoder over HTTP, as clients of OpenAI's API for completions expect it.

    scripts/serve.py runs/docs
    curl http://127.0.0.1:8000/v1/completions -H "Content-Type: application/json" \
        -d '{"model": "docs", "prompt": "The ", "max_tokens": 50}'

Only this machine is answered unless --host says otherwise, and there are no passwords: whoever reaches the port may
use the model. What is drawn alike is generated side by side, whenever it arrives. Exit status: 2 wrong usage or input;
130 or 143 after Ctrl-C or SIGTERM, when what is being answered is done, or after some seconds.
"""

import argparse
import logging
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import uvicorn

from training.commands import compilation_cache
from training.commands.arguments import at_least
from training.commands.terminal import say
from training.generation import Generator
from training.generation.text import AnswerError, Continuer, Options
from training.runs.directory import load_run
from training.serving.app import make_app
from training.serving.engine import Engine
from training.serving.protocol import Limits

GRACE = 10
"""Seconds that running answers get when the server is to stop."""


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    main = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = main.add_argument
    add("run", metavar="RUN", help="directory of a decoder's run")
    add("--host", default="127.0.0.1", metavar="ADDRESS", help="where to listen (default: 127.0.0.1, this machine)")
    add("--port", type=at_least(0), default=8000, metavar="N", help="port; 0 takes a free one (default: 8000)")
    add("--model", metavar="NAME", help="what clients call the model (default: the name of RUN)")
    add("--rows", type=at_least(1), default=16, metavar="N", help="most continuations side by side (default: 16)")
    add("--queue", type=at_least(1), default=128, metavar="N", help="most continuations that wait (default: 128)")
    add("--max-tokens", type=at_least(1), default=4096, metavar="N", help="most tokens of one (default: 4096)")
    add("--max-bytes", type=at_least(1), default=1 << 20, metavar="N", help="most bytes of a request (default: 2^20)")
    add("--timeout", type=at_least(1), default=300, metavar="N", help="most seconds of an answer (default: 300)")
    compilation_cache.add_flags(main)
    return main


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Raises:
        AnswerError: it cannot.
    """
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as error:
        raise AnswerError(
            f"cannot listen on {host}, port {port}: {getattr(error, 'strerror', None) or error}"
        ) from None


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    arguments = parser().parse_args(sys.argv[1:] if argv is None else argv)
    compilation_cache.begin(arguments)
    run = load_run(arguments.run)
    if run.task != "d":
        raise AnswerError(f"{arguments.run} is a run of the task {run.task}; serving needs a decoder, task d")
    name = arguments.model or Path(arguments.run).absolute().name
    engine = Engine(Generator(run.theta, run.config), run.tokenizer, rows=arguments.rows, queue=arguments.queue)
    limits = Limits(body=arguments.max_bytes, tokens=arguments.max_tokens, choices=arguments.queue)
    answerer = Continuer(run, Options())
    app = make_app(name, answerer, engine, limits=limits, timeout=arguments.timeout, clock=time.time)
    with listening(arguments.host, arguments.port) as listener:
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        say(f"{name} is served at http://{shown}:{port}/v1; Ctrl-C stops")
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # clients are told what goes wrong
        config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=GRACE)
        uvicorn.Server(config).run(sockets=[listener])
    return 0
