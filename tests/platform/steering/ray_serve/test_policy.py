"""The policy class with contexts as Serve passes them: modes, freshness, faults, restarts."""

import gc
import json
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import replace

import pytest

from loadmaster.envs.errors import InputError
from loadmaster.platform.steering.ray_serve.decider import Decider
from loadmaster.platform.steering.ray_serve.exported_metrics import NodeMetrics
from loadmaster.platform.steering.ray_serve.policy import (
    POLICY,
    ServicePolicy,
    autoscaling_policy,
)
from loadmaster.platform.steering.ray_serve.settings import PolicySettings
from loadmaster.serving.replicas.autoscaling import GATEWAY_TARGET, LOAD, autoscaling_options
from loadmaster.serving.systems.aware.schema import AwareState
from tests.platform.steering.ray_serve.fakes import Clock, Nodes, context, decision, http_server

STEP_S = 8.0


class Stand:
    """A policy whose samples are taken by hand, with nodes and a service over HTTP."""

    def __init__(self, mode="act", answers=None, status=200, **settings):
        self.clock, self.nodes = Clock(), Nodes(done={"r0": 0.0, "r1": 0.0})
        self.answers, self.status = answers or decision(5), status
        self._stack, self.is_new = ExitStack(), True
        metrics, _ = self._stack.enter_context(
            http_server(lambda *_: (200, self.nodes.text().encode()))
        )
        self.url, self.received = self._stack.enter_context(
            http_server(lambda *_: (self.status, json.dumps(self.answers).encode()))
        )
        given = {
            "mode": mode, "url": self.url, "slo_s": 1.0, "step_s": STEP_S, "slots": 2.0,
            "metrics": [metrics.removeprefix("http://")], **settings,
        }  # fmt: skip
        self.policy = ServicePolicy(self._decider, self.clock, **given)

    def _decider(self, name, settings):
        self.decider = Decider(
            name, settings, metrics=NodeMetrics(clock=self.clock), clock=self.clock
        )
        self.decider.stop.set()  # samples are taken by `steps`
        return self.decider

    def steps(self, count=1, requests=10.0, **given):
        """Control steps with calls of the policy; returns the last number."""
        for _ in range(4 * count + self.is_new):
            self.policy(context(**given))
            self.nodes.arrivals += requests
            for replica in self.nodes.done:
                self.nodes.done[replica] += requests / len(self.nodes.done)
            self.decider.sample()
            self.clock.now_s += STEP_S / 4
        self.is_new = False
        return self.policy(context(**given))[0]

    def decides(self):
        return [one for one in self.received if one.path.endswith("/decide")]

    def close(self):
        self._stack.close()


@pytest.fixture
def stand():
    made = []

    def make(**given):
        made.append(Stand(**given))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_act_returns_the_decision_once_a_control_step_is_complete(stand):
    one = stand()
    assert one.policy(context(replicas=2, ongoing=6.0)) == (3.0, {})  # the rule
    assert one.steps(replicas=2, ongoing=6.0) == 5.0
    (request,) = one.decides()
    assert request.body["mode"] == "active"
    state = AwareState.model_validate(request.body["state"])
    assert state.application == "shop/Model"
    assert state.bounds.replicas == (1, 10)
    assert state.bounds.cpu_m == (2000.0, 2000.0)


def test_log_has_changes_within_the_bounds_only(stand, caplog):
    one = stand(mode="watch")
    with caplog.at_level("INFO", "ray.serve"):
        for ongoing in (6.0, 20.0, 30.0, 400.0, 30.0):
            assert one.policy(context(ongoing=ongoing))[0] == ongoing / 2
    assert [record.args[-2] for record in caplog.records] == [3.0, 10.0]


def test_decision_is_kept_within_bounds(stand):
    one = stand(answers=decision(500))
    assert one.steps(bounds=(1, 7)) == 7.0
    one.answers = decision(1)
    assert one.steps(bounds=(2, 7)) == 2.0


@pytest.mark.parametrize("mode", ["watch", "shadow"])
def test_other_modes_return_the_rule_and_request_a_shadow(stand, mode):
    one = stand(mode=mode, answers=decision(4, shadow=9))
    assert one.steps(ongoing=6.0) == 3.0
    assert one.decides()[0].body["mode"] == "shadow"
    assert one.decider.answer is not None
    assert one.decider.answer.replicas == 9  # the policy's, beside the service's rule
    assert one.decider.answer.reason == "decided in shadow mode"


def test_feedback_of_act_is_on_the_decision_that_was_carried_out(stand):
    one = stand()
    one.steps(replicas=2)
    one.steps(replicas=5)
    (given,) = [one.body for one in one.received if one.path.endswith("/feedback")]
    assert given["id"] == "d1"
    assert given["outcome"]["application"] == "shop/Model"
    assert given["outcome"]["slo_s"] == pytest.approx(60.0 / STEP_S)
    one.answers = decision(3)
    one.steps(replicas=5)
    one.steps(replicas=4)  # Serve has not carried it out: no outcome of it
    assert len([one for one in one.received if one.path.endswith("/feedback")]) == 2


def test_feedback_by_mode(stand):
    shadow, watch = stand(mode="shadow"), stand(mode="watch")
    for one in (shadow, watch):
        one.steps(2)
    given = [one.body for one in shadow.received if one.path.endswith("/feedback")]
    assert [("id" in body) for body in given] == [False]  # of what Serve's rule did
    assert not [one for one in watch.received if one.path.endswith("/feedback")]


def test_decision_that_comes_during_a_call_counts_at_once(stand):
    one = stand(answers=decision(3))
    assert one.steps(ongoing=16.0) == 3.0
    one.decider.answer = replace(one.decider.answer, at_s=one.clock.now_s + 0.001, replicas=5)
    assert one.policy(context(ongoing=16.0))[0] == 5.0


def test_stale_decision_gives_way_to_the_rule(stand):
    one = stand(stale_s=20.0)
    assert one.steps(ongoing=2.0) == 5.0
    one.status = 503
    one.clock.now_s += 15.0
    assert one.policy(context(ongoing=2.0))[0] == 5.0
    one.clock.now_s += 10.0
    assert one.policy(context(ongoing=2.0))[0] == 1.0


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param({"decision": {"replicas": float("nan")}}, id="nan"),
        pytest.param({"nonsense": 1}, id="no decision"),
        pytest.param({**decision(3), "decision": {"act": True}}, id="no replicas"),
        pytest.param({**decision(3), "decision": {"replicas": "many"}}, id="text"),
        pytest.param({**decision(3), "decision": {"replicas": -1}}, id="negative"),
    ],
)
def test_unusable_answers_leave_the_rule(stand, answer):
    one = stand(answers=answer)
    assert one.steps(ongoing=6.0) == 3.0
    assert one.decider.answer is None


def test_metrics_down_leaves_the_rule(stand):
    one = stand(metrics=["127.0.0.1:1"])
    assert one.steps(ongoing=6.0) == 3.0
    assert not one.decides()


def test_metrics_that_fall_silent_leave_the_rule(stand):
    one = stand(answers=decision(5))
    assert one.steps(2, ongoing=6.0) == 5.0
    decided = len(one.decides())
    one.nodes.text = None  # its server fails
    assert one.steps(3, ongoing=6.0) == 3.0
    assert len(one.decides()) <= decided + 1  # while a part of the newest step was known


def test_requests_by_littles_law_without_metrics(stand):
    one = stand(metrics=["127.0.0.1:1"], request_s=0.5)
    assert one.steps(ongoing=6.0, queued=2.0) == 5.0
    reports = one.decides()[0].body["state"]["reports"]
    assert reports["requests"][-1] == pytest.approx(4.0 / 0.5 * STEP_S / 4)


def test_queue_calls_for_replicas_that_clear_it_within_the_slo(stand):
    """5 requests a second of 0.4 s and 5 that wait, two at a time in a replica, SLO of 1 s."""
    one = stand(answers=decision(2), queued_s=15.0, stale_s=60.0, request_s=0.4)
    assert one.steps(ongoing=16.0, queued=5.0, replicas=2) == 2.0
    one.clock.now_s += 11.0
    # ceil(0.4 (5 / 0.8 + 5 / 1) / 2); the rule wants 8.
    assert one.policy(context(ongoing=16.0, queued=5.0))[0] == 3.0
    assert one.policy(context(ongoing=4.0, queued=5.0))[0] == 2.0  # no more than the rule
    # While it lasts none is stopped that the rule would keep.
    assert one.policy(context(ongoing=16.0, queued=5.0, replicas=6))[0] == 6.0
    # Replicas that start are kept for a control step, though the rule would want fewer by now.
    one.clock.now_s += 0.9 * STEP_S
    assert one.policy(context(ongoing=4.0, queued=0.0, replicas=6))[0] == 6.0
    one.clock.now_s += 0.2 * STEP_S
    assert one.policy(context(ongoing=4.0, queued=0.0, replicas=6))[0] == 2.0


def test_no_replicas_are_left_to_serve(stand):
    one = stand()
    one.steps()
    assert one.policy(context(replicas=0, target=0, ongoing=3.0))[0] == 0.0


def test_load_metric_takes_the_place_of_ongoing_requests(stand):
    one = stand(mode="watch", load_metric="load")
    loads = {"load": {"r0": 3.0, "r1": 4.0}}
    assert one.policy(context(metrics=loads, ongoing=0.0))[0] == 3.5
    assert one.policy(context(ongoing=99.0, replicas=2))[0] == 2.0  # not reported yet


def test_own_gateways_and_workers_may_have_the_policy(stand):
    """Settings of `loadmaster serve` name it in `autoscaling`; Serve does not see the requests."""
    from ray.serve.config import AutoscalingConfig

    policy = autoscaling_policy(mode="act", load_metric=LOAD, request_s=0.01)
    given = {"min_replicas": 1, "max_replicas": 8, "policy": policy}
    config = AutoscalingConfig(**autoscaling_options(given, GATEWAY_TARGET))
    assert config.policy.policy_function == POLICY
    assert config.target_ongoing_requests == GATEWAY_TARGET
    one = stand(load_metric=LOAD, request_s=0.01)
    assert one.steps(metrics={LOAD: {"r0": 0.5, "r1": 1.0}}) == 5.0
    reports = one.decides()[0].body["state"]["reports"]
    assert reports["requests"][-1] == pytest.approx(1.5 / 0.01 * STEP_S / 4)


def test_restart_begins_anew_and_decides_again(stand):
    one = stand()
    assert one.steps() == 5.0
    one.is_new = True
    one.policy = ServicePolicy(
        one._decider, one.clock, mode="act", url=one.url, step_s=STEP_S,
        metrics=list(one.policy.settings.metrics),
    )  # fmt: skip
    assert one.policy(context(ongoing=6.0))[0] == 3.0
    assert one.steps() == 5.0


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"slo_s": 0}, id="no slo"),
        pytest.param({"slo": 1.0}, id="unknown"),
        pytest.param({"mode": "on"}, id="mode"),
        pytest.param({"step_s": 60, "stale_s": 60}, id="stale at once"),
    ],
)
def test_invalid_settings_are_refused_before_and_harmless_inside(settings):
    with pytest.raises(InputError):
        autoscaling_policy(**settings)
    policy = ServicePolicy(**settings)
    assert policy(context(ongoing=6.0)) == (3.0, {})


def test_failure_inside_leaves_the_rule():
    def fail(name, settings):
        raise RuntimeError("no thread")

    policy = ServicePolicy(fail, mode="act")
    assert policy(context(ongoing=6.0)) == (3.0, {})
    assert policy(context(ongoing=8.0)) == (4.0, {})


@pytest.mark.slow
def test_no_call_waits_for_a_service_that_hangs():
    """Requests wait for an answer that never comes: every call must return meanwhile."""
    hanging = socket.create_server(("127.0.0.1", 0), backlog=16)
    port = hanging.getsockname()[1]
    nodes = Nodes(done={"r0": 1.0})
    with hanging, http_server(lambda *_: (200, nodes.text().encode())) as (metrics, _):
        policy = ServicePolicy(
            mode="act", url=f"http://127.0.0.1:{port}", step_s=2.0, deadline_s=60.0,
            metrics=[metrics.removeprefix("http://")],
        )  # fmt: skip
        hanging.settimeout(30.0)
        accepted = threading.Event()

        def accept() -> None:
            connection, _ = hanging.accept()
            accepted.set()
            accepted.connection = connection  # kept open, never answered

        threading.Thread(target=accept, daemon=True).start()
        ends = time.monotonic() + 30.0
        while not accepted.is_set() and time.monotonic() < ends:
            assert policy(context(ongoing=6.0)) == (3.0, {})
            time.sleep(0.02)
        assert accepted.is_set()  # the thread waits for the answer now
        for _ in range(100):
            assert policy(context(ongoing=6.0)) == (3.0, {})
        assert policy.decider.answer is None
        policy.decider.stop.set()


def test_thread_ends_with_the_policy():
    policy = ServicePolicy(mode="watch", step_s=2.0, metrics=["127.0.0.1:1"])
    policy(context())
    decider = policy.decider
    del policy
    gc.collect()
    assert decider.stop.wait(5.0)


def test_serve_pickles_the_class_and_makes_it_in_another_process():
    """As Serve does: by value from this module, into the controller's process."""
    from ray.serve.config import AutoscalingConfig

    config = AutoscalingConfig(
        max_replicas=4, policy=autoscaling_policy(slo_s=0.5, metrics=["127.0.0.1:1"])
    )
    assert config.policy.policy_function == POLICY
    program = (
        "import sys, cloudpickle\n"
        "made = cloudpickle.loads(sys.stdin.buffer.read())(slo_s=0.5)\n"
        "from tests.platform.steering.ray_serve.fakes import context\n"
        "print(made(context(ongoing=6.0)))\n"
        "heavy = {'torch', 'numba', 'pandas', 'scipy', 'ray'} & set(sys.modules)\n"
        "print(sorted(heavy - {'ray'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=config.policy.get_serialized_policy_def(), capture_output=True, check=True,
    )  # fmt: skip
    assert done.stdout.decode().split("\n")[:2] == ["(3.0, {})", "[]"]


def test_settings_of_the_class_are_those_of_its_record():
    assert PolicySettings(step_s=20.0).fresh_s == 50.0
    assert PolicySettings(step_s=10.0).scale == 6.0
    assert PolicySettings(step_s=10.0, parts=3.0).latency_scale == 2.0
