"""Clients that load a server for a while: what they asked and got, and what it took.

python -m tests.load_of_clients RUN --seconds 600 --clients 16     (prints what docs/serving.md reports)
"""

import argparse
import contextlib
import dataclasses
import http.client
import json
import random
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

WORDS = "the cat sat on a mat and saw how rain fell over old stone walls near that little town"
SHARE_LEAVING = 0.15  # of requests whose client leaves before the answer is there
TIMEOUT = 300


@dataclasses.dataclass
class Load:
    """What clients asked, and got: prompts with seeds and lengths, and the texts of answers."""

    answers: list[tuple[dict, str]] = dataclasses.field(default_factory=list)
    failures: list[str] = dataclasses.field(default_factory=list)
    left: int = 0  # clients that left before the end
    first: list[float] = dataclasses.field(default_factory=list)  # seconds to the first token
    each: list[float] = dataclasses.field(default_factory=list)  # seconds from one token to the next
    memory: list[tuple[float, int]] = dataclasses.field(default_factory=list)  # seconds, and bytes


def request_of(rng, model, words):
    """A request of random length, drawn with a seed."""
    prompt = " ".join(rng.choice(WORDS.split()) for _ in range(rng.choice([2, 5, 20, 40, rng.randint(2, words)])))
    how = {"max_tokens": rng.randint(1, 40), "temperature": rng.choice([0, 0.8]), "seed": rng.randrange(1000)}
    return {"model": model, "prompt": prompt, **how}


def streamed(port, body, leave_after):
    """Yield the pieces of an answer, with an error if it fails; break off after this many."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
    try:
        data = json.dumps({**body, "stream": True})
        connection.request("POST", "/v1/completions", data, {"content-type": "application/json"})
        if leave_after == 0:
            return  # before anything has come
        response = connection.getresponse()
        if response.status != 200:
            raise OSError(f"{response.status}: {response.read().decode()}")
        n = 0
        for line in response:
            if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise OSError(event["error"]["message"])
            yield event["choices"][0]
            n += 1
            if n == leave_after:
                return
        if event["choices"][0]["finish_reason"] is None:
            raise OSError("the answer breaks off")
    finally:
        connection.close()


def client(port, load, seed, until, model, words):
    """Ask one thing after another."""
    rng = random.Random(seed)
    while time.monotonic() < until:
        body = request_of(rng, model, words)
        leave_after = rng.choice([0, 1, 3]) if rng.random() < SHARE_LEAVING else None
        begun = before = time.monotonic()
        text = ""
        try:
            for i, choice in enumerate(streamed(port, body, leave_after)):
                now = time.monotonic()
                (load.each if i else load.first).append(now - (before if i else begun))
                before, text = now, text + choice["text"]
        except (OSError, http.client.HTTPException) as error:
            load.failures.append(f"{body}: {error}")
            time.sleep(0.5)
        else:
            if leave_after is None:
                load.answers.append((body, text))
            else:
                load.left += 1


def loaded(port, *, seconds, clients, model, words=80, memory=None):
    """Load a server; `memory` gives its bytes, once a second."""
    load, begun = Load(), time.monotonic()
    until = begun + seconds
    arguments = [(port, load, seed, until, model, words) for seed in range(clients)]
    threads = [threading.Thread(target=client, args=one) for one in arguments]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if memory is not None:
            load.memory.append((time.monotonic() - begun, memory()))
        time.sleep(1)
    return load


def quantile(values, q):
    """The value below which a share q of the values is."""
    return sorted(values)[min(len(values) - 1, int(q * len(values)))]


def alone(port, body):
    """The answer to a request that nobody asks beside."""
    return "".join(choice["text"] for choice in streamed(port, body, None))


def memory_of(pid):
    """A function that returns the resident bytes of a process, on Linux."""
    return lambda: int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) * 1024


@contextlib.contextmanager
def serving(run, *options):
    """The port of a server of a run, in a process of its own, and a function that returns its memory."""
    command = [sys.executable, "scripts/serve.py", str(run), "--port", "0", "--model", "m", *options]
    with subprocess.Popen(command, stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield int(re.search(r":(\d+)/v1", server.stdout.readline())[1]), memory_of(server.pid)
        finally:
            server.terminate()


def report(run, *, seconds, clients, compared=100):
    """Yield what a server of a run did under load, line by line."""
    with serving(run) as (port, memory):
        yield f"idle: {memory() / 1e9:.2f} GB"
        load = loaded(port, seconds=seconds, clients=clients, model="m", memory=memory)
        yield f"{len(load.answers)} answers, {load.left} left, {len(load.failures)} failures {load.failures[:3]}"
        for name, values in (("first token", load.first), ("token", load.each)):
            shown = ", ".join(f"p{100 * q:g} {quantile(values, q):.3f} s" for q in (0.5, 0.99))
            yield f"{name}: {shown} of {len(values)}"
        shown = [f"{t:.0f} s {used / 1e9:.2f}" for t, used in load.memory[:: max(1, len(load.memory) // 20)]]
        yield f"memory, GB: {', '.join(shown)}"
        sample = random.Random(0).sample(load.answers, min(compared, len(load.answers)))
        other = [(body, text, of_one) for body, text in sample if (of_one := alone(port, body)) != text]
        yield f"{len(other)} of {len(sample)} differ from the answer alone {other[:3]}"
        yield f"idle again: {memory() / 1e9:.2f} GB"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("run")
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--clients", type=int, default=16)
    given = parser.parse_args()
    for line in report(given.run, seconds=given.seconds, clients=given.clients):
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
