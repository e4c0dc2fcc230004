"""The extender over HTTP: scores, held pods, expiry, both shapes of nodes, bad requests."""

import http.client
import json
import socket
import urllib.error
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from loadmaster.envs.errors import InputError
from loadmaster.platform.steering.kubernetes_gpu.extender import DecisionTable, extender_server
from tests.platform.steering.kubernetes_gpu.cluster import gpu_node, gpu_pod, request

NODES = ["n1", "n2", "n3"]
TTL_S, NEW_S = 20.0, 10.0


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Served:
    """A table, its clock, and its server."""

    def __init__(self, stack: ExitStack, **settings: Any) -> None:
        self.clock = Clock()
        self.table = DecisionTable(TTL_S, new_s=NEW_S, clock=self.clock, **settings)
        self.port = stack.enter_context(extender_server(self.table, "127.0.0.1", 0))

    def call(self, verb: str, pod: str, **nodes: Any) -> Any:
        arguments = {"Pod": gpu_pod(pod), "Nodes": None, "NodeNames": NODES, **nodes}
        return request(f"http://127.0.0.1:{self.port}/{verb}", arguments)

    def passed(self, pod: str) -> list[str]:
        found: list[str] = self.call("filter", pod)["NodeNames"]
        return found

    def scores(self, pod: str) -> dict[str, int]:
        return {one["Host"]: one["Score"] for one in self.call("prioritize", pod)}


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def test_wanted_node_scores_ten_until_the_entry_expires(stack: ExitStack) -> None:
    served = Served(stack)
    served.table.start({"uid-a": "n2"})
    assert served.scores("a") == {"n1": 0, "n2": 10, "n3": 0}
    assert served.scores("b") == dict.fromkeys(NODES, 0)
    served.clock.now_s += TTL_S
    assert served.scores("a") == dict.fromkeys(NODES, 0)
    assert served.table.placed() == {}


def test_without_order_every_node_passes(stack: ExitStack) -> None:
    served = Served(stack)
    served.table.start({"uid-a": "n2"})
    served.table.renew({"uid-b": "waits"})
    assert [served.passed(one) for one in "abc"] == [NODES] * 3


def test_with_order_pods_that_wait_are_held_back_with_the_reason(stack: ExitStack) -> None:
    served = Served(stack, order=True)
    served.table.renew({"uid-a": "waits", "uid-b": "waits"})
    served.table.start({"uid-a": "n2"})
    served.table.reason = "policy das: least attained service"
    found = served.call("filter", "a")
    assert (found["NodeNames"], set(found["FailedNodes"])) == (["n2"], {"n1", "n3"})
    found = served.call("filter", "b")
    reason = "loadmaster: waits; policy das: least attained service"
    assert (found["NodeNames"], found["FailedNodes"]) == ([], dict.fromkeys(NODES, reason))
    assert found["FailedAndUnresolvableNodes"] == found["FailedNodes"]
    assert served.table.held() == {"uid-b"}
    served.clock.now_s += TTL_S
    assert [served.passed(one) for one in "ab"] == [NODES] * 2
    assert served.table.passed_over() == ["uid-b"]


def test_start_on_a_node_that_is_not_possible_passes_none(stack: ExitStack) -> None:
    served = Served(stack, order=True)
    served.table.start({"uid-a": "n4"})
    assert served.passed("a") == []
    assert served.table.passed_over() == ["uid-a"]


def test_new_pod_is_held_for_a_while_if_decisions_are_made(stack: ExitStack) -> None:
    served = Served(stack, order=True, holds=lambda pod: pod["metadata"]["name"] != "alone")
    assert served.passed("early") == NODES  # no decision yet
    served.table.renew({})
    assert (served.passed("new"), served.passed("alone")) == ([], NODES)
    served.clock.now_s += NEW_S
    assert served.passed("new") == NODES
    assert served.table.passed_over() == ["uid-new"]
    served.table.forget(["uid-new"])
    assert served.table.passed_over() == []


def test_cleared_table_passes_everything(stack: ExitStack) -> None:
    served = Served(stack, order=True)
    served.table.renew({"uid-a": "waits"})
    served.table.start({"uid-b": "n2"})
    served.table.clear()
    assert (served.passed("a"), served.passed("b")) == (NODES, NODES)
    assert served.scores("b") == dict.fromkeys(NODES, 0)


def test_renewal_is_needed_by_half_of_the_time_or_by_other_pods() -> None:
    clock = Clock()
    table = DecisionTable(TTL_S, order=True, clock=clock)
    waits = {"uid-a": "waits"}
    assert table.is_due(waits)
    table.renew(waits)
    assert (table.is_due(dict(waits)), table.is_due({})) == (False, True)
    clock.now_s += TTL_S / 2 + 1
    assert table.is_due(waits)


def test_whole_nodes_are_answered_as_whole_nodes(stack: ExitStack) -> None:
    served = Served(stack, order=True)
    served.table.start({"uid-a": "n2"})
    items = [gpu_node(name) for name in NODES]
    found = served.call("filter", "a", NodeNames=None, Nodes={"items": items})
    assert found["Nodes"]["items"] == [items[1]]
    assert "NodeNames" not in found
    scores = served.call("prioritize", "a", NodeNames=None, Nodes={"items": items})
    assert [one["Score"] for one in scores] == [0, 10, 0]


@pytest.mark.parametrize("body", [b"", b"{", b"3", b"{}", b'{"Pod": null}', b'{"Pod": {}}'])
def test_bad_request_is_refused_and_the_connection_stays(stack: ExitStack, body: bytes) -> None:
    served = Served(stack)
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=30)
    for _ in range(2):
        connection.request("POST", "/filter", body, {"Content-Type": "application/json"})
        found = connection.getresponse()
        assert (found.status, "Error" in json.load(found)) == (400, True)
    connection.close()


def test_unknown_paths_and_health(stack: ExitStack) -> None:
    served = Served(stack)
    with pytest.raises(urllib.error.HTTPError, match="404"):
        served.call("bind", "a")
    served.table.start({"uid-a": "n2"})
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=30)
    connection.request("GET", "/healthz")
    assert json.load(connection.getresponse()) == {"starts": 1, "waits": 0, "live": False}
    connection.close()


def test_taken_port_is_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(InputError, match=f"cannot listen on 127.0.0.1:{port}"),
            extender_server(DecisionTable(TTL_S), "127.0.0.1", port),
        ):
            pass
