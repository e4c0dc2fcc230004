"""CPU time of reading states in the worker: by structs from JSON and MessagePack, and by the model.

A state is read when it is decoded, checked and laid out in the simulator's tables. The ways are
interleaved, so load on the machine affects all of them alike; ratios are taken within a round.
"""

import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

from loadmaster.envs.registry import systems
from loadmaster.models.layers import one_thread
from loadmaster.platform.bench.measurements import Figure
from loadmaster.serving.decisions.request import (
    encode_reply,
    json_to_msgpack,
    parse_options,
    read,
    request_model,
    to_json,
)
from loadmaster.serving.policies.store import resolve_bundle
from loadmaster.serving.system import Endpoint, find_endpoint
from loadmaster.serving.worker.worker import PolicyRunner, freeze_gc

ROUNDS = 20
TURN_S = 0.02  # of each way in each round
EXAMPLES = ("small", "large")
JSON, MSGPACK, MODEL, OPTIONS, DECIDE = "json", "msgpack", "model", "options", "decide"


def measure(report_step: Callable[[str], None], rounds: int = ROUNDS) -> Iterator[Figure]:
    """Measure the examples of every system that can be served."""
    served = [name for name, one in systems().items() if one.available and one.has("endpoint")]
    for system in served:
        endpoint = find_endpoint(system)
        report_step(f"{system}: load the policy")
        runner = PolicyRunner(endpoint, endpoint.rules[0])
        version = runner.load(str(resolve_bundle(endpoint.pretrained))).version
        for example in EXAMPLES:
            report_step(f"{system}: {example} state")
            with one_thread():
                yield from _measure_state(runner, version, endpoint, example, rounds)


def _measure_state(
    runner: PolicyRunner,
    version: str,
    endpoint: Endpoint[Any, Any, Any],
    example: str,
    rounds: int,
) -> Iterator[Figure]:
    raw = to_json({"state": endpoint.examples()[example].model_dump(mode="json")})
    packed, model = json_to_msgpack(raw), request_model(endpoint)
    ways: dict[str, Callable[[], object]] = {
        MODEL: lambda: read(model, raw),
        JSON: lambda: runner.state(raw),
        MSGPACK: lambda: runner.state(packed),
        OPTIONS: lambda: parse_options(raw),
        DECIDE: lambda: encode_reply(runner.decide(raw, version, "")),
    }
    calls = {name: max(1, round(TURN_S / _seconds(way, 3))) for name, way in ways.items()}
    freeze_gc()  # as the worker does
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            spent[name].append(1000 * _seconds(way, calls[name]))
    at = f"reading/{endpoint.system}/{example}"
    for name, size in ((JSON, len(raw)), (MSGPACK, len(packed))):
        own, by_model = median(spent[name]), median(spent[MODEL])
        yield Figure(f"{at}/{name}/ms", own, "ms", by_model, "pydantic model, JSON", False)
        ratios = [b / a for a, b in zip(spent[MODEL], spent[name], strict=True)]
        yield Figure(f"{at}/{name}/share_of_model", median(ratios), "", None, "", False)
        yield Figure(f"{at}/{name}/kb", size / 1000, "kB", None, "", False)
    for name in (OPTIONS, DECIDE):
        yield Figure(f"{at}/{name}/ms", median(spent[name]), "ms", None, "", False)


def _seconds(way: Callable[[], object], calls: int) -> float:
    """Mean CPU time of a call in this thread."""
    began = time.thread_time()
    for _ in range(calls):
        way()
    return (time.thread_time() - began) / calls
