"""Decisions per second of processes that share nothing, the control of `bench serve --replicas`.

Cores of one machine share caches, arithmetic units and their power, so even processes without any
exchange are not as many times as fast as there are of them.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from loadmaster.serving.decisions.request import to_json
from loadmaster.serving.system import find_endpoint
from loadmaster.serving.worker.worker import PolicyRunner

SECONDS, LEAD_S = 1.5, 0.3  # of a measurement; until all copies begin
PROCESSES = 2  # of a replica: a gateway and a worker


class DecidingCopy:
    """A loop that reads one example and decides on it by the system's first rule."""

    def __init__(self, system: str, example: str) -> None:
        endpoint = find_endpoint(system)
        self._raw = to_json({"state": endpoint.examples()[example].model_dump(mode="json")})
        self._runner = PolicyRunner(endpoint, endpoint.rules[0])
        self._decide()  # compiled functions are loaded

    def rate(self, begin: float, seconds: float) -> float:
        """Decisions per second from `begin` on, in seconds of the machine's clock."""
        time.sleep(max(0.0, begin - time.time()))
        began, made = time.perf_counter(), 0
        while (passed := time.perf_counter() - began) < seconds:
            self._decide()
            made += 1
        return made / passed

    def _decide(self) -> None:
        to_json(self._runner.decide_by_rule(self._runner.state(self._raw)))


@contextmanager
def deciding_copies(count: int, system: str, example: str) -> Iterator[list[Any]]:
    """Start actors on the connected Ray; they end with the context."""
    import ray  # late: the environment of `serve` sets its authentication before

    kind = ray.remote(DecidingCopy).options(num_cpus=0)
    copies = [kind.remote(system, example) for _ in range(count)]
    try:
        rates_of(copies, 0.01)  # all have started
        yield copies
    finally:
        for copy in copies:
            ray.kill(copy)


def rates_of(copies: Sequence[Any], seconds: float = SECONDS) -> list[float]:
    """Decisions per second of copies that run at once."""
    import ray

    begin = time.time() + LEAD_S
    found: list[float] = ray.get([copy.rate.remote(begin, seconds) for copy in copies])
    return found


def independent_speedups(sizes: Sequence[int], system: str, example: str) -> dict[int, float]:
    """By number of replicas: rate of their processes relative to those of the fewest."""
    first = min(sizes)
    with deciding_copies(PROCESSES * max(sizes), system, example) as copies:
        rates = {size: sum(rates_of(copies[: PROCESSES * size])) for size in sorted(sizes)}
    return {size: rate / rates[first] for size, rate in rates.items()}
