"""The decision service as a recommender: real states, tenants, feedback."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from loadmaster.platform.steering.core import Steerer
from loadmaster.platform.steering.kubernetes.access import Access
from loadmaster.platform.steering.kubernetes.client import KubernetesClient
from loadmaster.platform.steering.kubernetes.engine import ENDPOINT, MpaEngine
from loadmaster.platform.steering.kubernetes.queries import MetricReader
from loadmaster.platform.steering.prometheus import Prometheus
from loadmaster.platform.steering.recommenders import find_recommender
from loadmaster.serving.decisions.tenant_names import tenant_of
from tests.platform.steering.kubernetes.api_server import MPA, WINDOW_S, Received, serving
from tests.platform.steering.kubernetes.simulation import (
    SimulatedCluster,
    SimulatedPrometheus,
    new_runner,
)
from tests.serving import toy
from tests.serving.conftest import LocalService, open_service
from tests.serving.systems.aware import fake


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    """The only thread that uses the service, whose database belongs to one."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture
def service(
    tmp_path_factory: pytest.TempPathFactory, thread: ThreadPoolExecutor
) -> Iterator[LocalService]:
    """The service with a policy that adds a replica at every second decision."""
    folder = tmp_path_factory.mktemp("steered")
    systems: dict[str, Any] = {
        "toy": {"endpoint": toy.REFERENCE, "bundle": str(toy.make_bundle(folder / "toy"))},
        "aware": {
            "endpoint": fake.REFERENCE, "deadline_ms": 60_000,
            "bundle": str(toy.make_bundle(folder / "aware", "mine", system="aware")),
        },
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("LOADMASTER_TOKENS", raising=False)
        here = thread.submit(open_service, systems, folder).result()
    yield here
    thread.submit(here.close).result()


@pytest.mark.slow
def test_service_steers_and_gets_the_outcomes(
    service: LocalService, thread: ThreadPoolExecutor
) -> None:
    outcomes: list[Any] = []

    def handle(one: Received, token: str) -> tuple[int, dict[str, str], Any]:
        answer = thread.submit(service.request, one.method, one.path, one.body).result()
        if one.path.endswith("/feedback"):
            outcomes.append((answer.json, one.body))
        return answer.status, {}, answer.json

    cluster = SimulatedCluster(new_runner(1, application="webServe", steps=5))
    with ExitStack() as stack:
        url = stack.enter_context(serving(handle))
        client = KubernetesClient(Access(stack.enter_context(serving(cluster.handle)), "secret"))
        metrics_url = stack.enter_context(serving(SimulatedPrometheus(cluster).handle))
        reader = MetricReader(Prometheus(metrics_url), WINDOW_S)
        engine = MpaEngine(client, reader, "shop/cart", True, lambda: cluster.now_s)
        steerer = Steerer(find_recommender(["service"], ENDPOINT, url, "t", 30.0), mode="act")
        for _ in range(4):
            result = steerer.step(engine, cluster.now_s)
            assert not result.degraded, result
            assert result.source.startswith("policy")
            cluster.advance()
    assert len(outcomes) == 3
    tenant = tenant_of("shop/cart")
    assert all(answer["accepted"] and answer["tenant"] == tenant for answer, _ in outcomes)
    ids = [one["id"] for _, one in outcomes]
    assert len(set(ids)) == 3
    assert cluster.objects[MPA]["status"]["memory"]["decisionId"] not in ids
