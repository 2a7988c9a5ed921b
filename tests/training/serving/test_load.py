"""A server under load: memory that does not grow, nothing lost, and every answer as alone."""

import concurrent.futures
import contextlib
import http.client
import itertools
import json
import pathlib
import random
import re
import statistics
import subprocess
import sys
import time

import pytest

from tests.run_cases import BYTES, make_run

CLIENTS = 16
WORDS = "the cat sat on a mat and saw how rain fell over old stone walls near that little town"
SHARE_LEAVING = 0.15  # of requests whose client leaves before the answer is there
FLAGS = ["--port", "0", "--model", "m", "--memory", "64M", "--prefix-bytes", "4000000"]


def streamed(port, body, leave_after=None):
    """The text of a streamed answer; with `leave_after`, of its first pieces only."""
    connection, text = http.client.HTTPConnection("127.0.0.1", port, timeout=300), ""
    with contextlib.closing(connection):
        connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        if leave_after == 0:
            return text  # before anything has come
        response, finish = connection.getresponse(), None
        assert response.status == 200
        events = (line[6:] for line in response if line.startswith(b"data: {"))
        for n, event in enumerate(map(json.loads, events), 1):
            text, finish = text + event["choices"][0]["text"], event["choices"][0]["finish_reason"]
            if n == leave_after:
                return text
        assert finish is not None, "the answer breaks off"
        return text


def asked(port, seed, until):
    """Ask one random thing after another, and leave some; return the requests that were answered, and how many were
    left.
    """
    rng, answers, left = random.Random(seed), [], 0
    while time.monotonic() < until:
        prompt = " ".join(rng.choice(WORDS.split()) for _ in range(rng.choice([2, 5, 20, 40])))
        body = {"model": "m", "prompt": prompt, "max_tokens": rng.randint(1, 40), "stream": True}
        body |= {"temperature": rng.choice([0, 0.8]), "seed": rng.randrange(1000)}
        if rng.random() < SHARE_LEAVING:
            streamed(port, body, rng.choice([0, 1, 3]))
            left += 1
        else:
            answers.append((body, streamed(port, body)))
    return answers, left


def loaded(port, pid, *, seconds, clients=CLIENTS):
    """Answers to clients side by side, how many were left, and the resident memory, once a second."""
    until, memory = time.monotonic() + seconds, []
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        found = [pool.submit(asked, port, seed, until) for seed in range(clients)]
        while not all(one.done() for one in found):
            status = pathlib.Path(f"/proc/{pid}/status").read_text()
            memory.append(int(re.search(r"VmRSS:\s+(\d+)", status)[1]))
            time.sleep(1)
    answers, left = zip(*(one.result() for one in found), strict=True)
    return [*itertools.chain(*answers)], sum(left), memory


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the memory of another process is read from /proc")
def test_many_clients_for_a_minute(tmp_path):
    """Once programs are compiled, memory is flat."""
    run = make_run(tmp_path / "small", "d", BYTES, l_max=512, L=4, d_e=64, d_mlp=64)
    command = [sys.executable, "scripts/serve.py", str(run), *FLAGS]
    with subprocess.Popen(command, stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True) as server:
        try:
            port = int(re.search(r":(\d+)/v1", server.stdout.readline())[1])
            for few in (1, 3):  # a program for each number of rows
                loaded(port, server.pid, seconds=5, clients=few)
            *_, before = loaded(port, server.pid, seconds=40)
            answers, left, after = loaded(port, server.pid, seconds=40)
            assert len(answers) > CLIENTS
            assert left > 0
            for body, text in answers[:: max(1, len(answers) // 20)]:
                assert streamed(port, body) == text
        finally:
            server.terminate()
    was, became = map(statistics.median, (before[-10:], after))
    assert 0.9 * was < became < 1.1 * was
