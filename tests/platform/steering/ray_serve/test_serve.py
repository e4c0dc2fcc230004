"""The policy class in a real Serve: up and down by the service, then by the rule without it."""

import json
import threading
import time
from contextlib import ExitStack

import pytest

from loadmaster.platform.bench.engines.ray_serve_cluster import SLEEPER, sleeper
from loadmaster.platform.steering.ray_serve.policy import autoscaling_policy
from loadmaster.serving.systems.aware.schema import AwareState
from tests.platform.steering.ray_serve.fakes import decision, http_server

APP = "steered"
PATIENCE_S = 90.0

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.engine("ray-serve")]


def running(name=APP):
    from ray import serve

    found = serve.status().applications[name].deployments
    return found[SLEEPER].replica_states.get("RUNNING", 0) if found else 0


def until(number, patience_s=PATIENCE_S):
    ends = time.monotonic() + patience_s
    while running() != number:
        assert time.monotonic() < ends, f"{running()} replicas; expected {number}"
        time.sleep(0.1)


@pytest.fixture
def serve_running(ray_session):
    """Serve in the shared Ray; other tests may have a service there."""
    from ray import serve

    serve.start(proxy_location="Disabled")
    before = set(serve.status().applications)
    yield serve
    if before:
        serve.delete(APP)
    else:
        serve.shutdown()


def test_up_and_down_by_the_service_and_by_the_rule_without_it(serve_running):
    states = []

    def decide(method, path, body):
        if not path.endswith("/decide"):
            return 200, json.dumps({"accepted": True}).encode()
        states.append(json.loads(body)["state"])
        busy = (states[-1]["reports"]["requests"][-1] or 0.0) > 0
        return 200, json.dumps(decision(3 if busy else 1)).encode()

    with ExitStack() as service:
        url, received = service.enter_context(http_server(decide))
        policy = autoscaling_policy(
            mode="act", url=url, slo_s=0.5, step_s=2.0, slots=1.0,
            deadline_s=30.0, stale_s=5.0,
        )  # fmt: skip
        config = {
            "min_replicas": 1, "max_replicas": 4, "upscale_delay_s": 0.0, "downscale_delay_s": 0.0,
            "look_back_period_s": 2.0, "metrics_interval_s": 1.0, "policy": policy,
        }  # fmt: skip
        handle = serve_running.run(
            sleeper({"autoscaling_config": config}), name=APP, route_prefix=None
        )
        stopped = threading.Event()

        def load():
            while not stopped.wait(0.05):
                handle.remote(0.01).result()

        loading = threading.Thread(target=load)
        loading.start()
        try:
            until(3)  # the rule wants 1 for this load
        finally:
            stopped.set()
            loading.join()
        until(1)
        assert [one.path for one in received if "feedback" in one.path]
    # The service is gone: Serve's rule, two ongoing requests a replica.
    stopped.clear()

    def wait_long():
        while not stopped.is_set():
            handle.remote(1.0).result()

    waiting = [threading.Thread(target=wait_long) for _ in range(6)]
    for thread in waiting:
        thread.start()
    try:
        until(3)
    finally:
        stopped.set()
        for thread in waiting:
            thread.join()
    state = AwareState.model_validate(states[-1])
    assert state.application == f"{APP}/{SLEEPER}"
    assert any(AwareState.model_validate(one).steps.p99_s[-1] for one in states)
