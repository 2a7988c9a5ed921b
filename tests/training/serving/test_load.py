"""A server under load: memory that does not grow, nothing lost, and every answer as alone."""

import statistics
import sys

import pytest

from tests import load_of_clients
from tests.run_cases import BYTES, make_run

CLIENTS = 16


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the memory of another process is read from /proc")
def test_many_clients_for_a_minute(tmp_path):
    """Requests of random lengths, and some clients leave. Once programs are compiled, memory is flat."""
    run = make_run(tmp_path / "small", "d", BYTES, l_max=512, L=4, d_e=64, d_mlp=64)
    with load_of_clients.serving(run, "--memory", "64M", "--prefix-bytes", "4000000") as (port, memory):
        how = {"clients": CLIENTS, "model": "m", "words": 40, "memory": memory}
        for few in (1, 3):  # a program for each number of rows
            load_of_clients.loaded(port, seconds=5, **how | {"clients": few})
        before = load_of_clients.loaded(port, seconds=40, **how).memory[-10:]
        load = load_of_clients.loaded(port, seconds=40, **how)
        assert load.failures == []
        assert len(load.answers) > CLIENTS
        assert load.left > 0
        for body, text in load.answers[:: max(1, len(load.answers) // 20)]:
            assert load_of_clients.alone(port, body) == text
    was, became = (statistics.median(used for _, used in memory) for memory in (before, load.memory))
    assert 0.9 * was < became < 1.1 * was
