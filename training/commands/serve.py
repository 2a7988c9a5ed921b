r"""Serve a trained model over HTTP, with OpenAI's API: a decoder completes and chats, an encoder embeds.

    scripts/serve.py runs/docs
    curl http://127.0.0.1:8000/v1/completions -H "Content-Type: application/json" \
        -d '{"model": "docs", "prompt": "The ", "max_tokens": 50}'

By default only this machine can connect (see --host), and no key is required (see --api-key-file). Concurrent requests
are generated as one batch. Exit status: 2 invalid usage or input; 130 or 143 after Ctrl-C or SIGTERM, once the running
answers are done, or after ten seconds.
"""

import argparse
import logging
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path

import uvicorn

from training.command_line import compilation_cache
from training.command_line.arguments import (
    Parser,
    add_inference,
    add_markup,
    add_model,
    at_least,
    loading_of,
    local,
    size,
    type_of,
)
from training.command_line.named_models import model_of
from training.command_line.terminal import say
from training.data.chat import with_markup
from training.disk import read_text, reason
from training.extras import import_early
from training.generation.text import AnswerError
from training.interchange.gguf_file import SUFFIX
from training.interchange.names import MODEL
from training.serving.app import make_app
from training.serving.engine import Engine
from training.serving.served import Decoder, Limits, served_of

KEY = "FORMAL_API_KEY"  # the environment's variable
IDLE = 75  # seconds of an idle connection, longer than clients and proxies keep theirs (httpx 5, aiohttp 15, nginx 60)
GRACE = 10  # seconds for running answers to finish when the server stops


def parser() -> Parser:
    """Return the command line."""
    main = Parser(description=__doc__)
    add = main.add_argument
    add("run", metavar="RUN", help=f"a decoder or an encoder: {MODEL}")
    add("--host", default="127.0.0.1", metavar="ADDRESS", help="address to listen on (default: 127.0.0.1)")

    def count(flag: str, least: int, default: int, text: str) -> None:
        add(flag, type=at_least(least), default=default, metavar="N", help=text)

    count("--port", 0, 8000, "port; 0 picks a free one (default: 8000)")
    add("--model", metavar="NAME", help="name of the model in requests (default: the name of RUN)")
    count("--rows", 1, 16, "maximum continuations in a batch (default: 16)")
    count("--queue", 1, 128, "maximum continuations waiting (default: 128)")
    count("--max-tokens", 1, 4096, "maximum tokens of each (default: 4096)")
    count(
        "--prefix-bytes",
        0,
        1 << 28,
        "maximum bytes of cached keys and values, which requests with a common prefix share (default: 2^28)",
    )
    add(
        "--memory",
        type=size,
        metavar="SIZE",
        help="maximum memory of all keys and values, such as 4G, --prefix-bytes included (default: half of what is "
        "free): a request for which there is none waits, or is refused if it never fits",
    )
    key = f"file of the key that clients must send (default: that in {KEY}, or none)"
    add("--api-key-file", metavar="FILE", type=local, help=key)
    add("--cors-origin", action="append", default=[], metavar="ORIGIN", help="origin whose web pages may send requests")
    add("--allow-host", action="append", default=[], metavar="NAME", help="another host name of this server")
    count("--max-requests", 1, 256, "maximum requests at once (default: 256)")
    count("--request-timeout", 1, 30, "maximum seconds to receive a request (default: 30)")
    count("--max-bytes", 1, 1 << 20, "maximum request size (default: 2^20)")
    count("--timeout", 1, 300, "maximum seconds per answer (default: 300)")
    add_inference(add)
    add_model(add)
    add_markup(add)
    return main


def listening(host: str, port: int) -> socket.socket:
    """Return a listening socket, or raise AnswerError if the address is unavailable."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise AnswerError(f"cannot listen on {host}, port {port}: {why}") from None


def api_key_of(arguments: argparse.Namespace, environment: Mapping[str, str]) -> str | None:
    """Return the key that clients must send, by a flag, else by the environment; None: none. Raises AnswerError."""
    found, source = environment.get(KEY), KEY
    if arguments.api_key_file is not None:
        source = f"--api-key-file: {arguments.api_key_file}"
        try:
            found = read_text(arguments.api_key_file).rstrip("\r\n")
        except (OSError, ValueError) as error:
            raise AnswerError(f"{source}: {reason(error) if isinstance(error, OSError) else error}") from None
    if found is not None and (not found.strip() or len(found.splitlines()) > 1):
        got = "several lines" if found.strip() else "nothing"
        raise AnswerError(f"{source}: expected a key, got {got}; leave it out to require none")
    return found


@compilation_cache.command(parser)
def main(arguments: argparse.Namespace) -> None:
    """Run the command line."""
    import_early("psutil")
    api_key = api_key_of(arguments, os.environ)
    run = model_of(arguments.run, **loading_of(arguments))
    if arguments.messages_are_markup:
        run = run._replace(tokenizer=with_markup(run.tokenizer))
    name = arguments.model or Path(arguments.run).absolute().name.removesuffix(SUFFIX)
    limits = Limits(
        body=arguments.max_bytes,
        tokens=arguments.max_tokens,
        queue=arguments.queue,
        seconds=arguments.timeout,
        prefixes=arguments.prefix_bytes,
        requests=arguments.max_requests,
        patience=arguments.request_timeout,
        memory=arguments.memory,
    )
    served = served_of(run, name, limits, weights=arguments.weights)
    engine = None
    if isinstance(served.model, Decoder):
        model = served.model
        sizes = {"rows": arguments.rows, "queue": arguments.queue}
        engine = Engine(model.generator, run.tokenizer, **sizes, budget=model.budget)
    app = make_app(
        served,
        engine,
        clock=time.time,
        address=arguments.host,
        names=tuple(arguments.allow_host),
        api_key=api_key,
        origins=tuple(arguments.cors_origin),
    )
    with listening(arguments.host, arguments.port) as listener:
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        say(f"{name} is served at http://{shown}:{port}/v1, in {type_of(run.theta)}; Ctrl-C stops")
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # clients receive the errors
        config = uvicorn.Config(
            app,
            ws="none",
            log_config=None,
            access_log=False,
            timeout_keep_alive=IDLE,
            timeout_graceful_shutdown=GRACE,
        )
        uvicorn.Server(config).run(sockets=[listener])
