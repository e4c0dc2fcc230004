"""The external scaler against Serve's REST API: modes, requests, refusals, silence, bad input."""

import threading
from contextlib import ExitStack

import pytest

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import build_settings
from loadmaster.platform.steering.core import Recommendation, SilentError, Steerer
from loadmaster.platform.steering.loop import steer
from loadmaster.platform.steering.ray_serve import engine
from loadmaster.platform.steering.ray_serve.dashboard import Dashboard
from loadmaster.platform.steering.ray_serve.engine import RayServeSettings, Sampler, connect
from loadmaster.serving.systems.aware.schema import AwareState
from tests.platform.steering.ray_serve import fakes

NAME = "shop/Model"


class Decides:
    """A recommender with one number, which keeps what it is given."""

    name = "test"

    def __init__(self, replicas):
        self.replicas, self.states, self.outcomes = replicas, [], []

    def recommend(self, application, state):
        self.states.append(state)
        size = {"cpu_m": state["plan"]["cpu_m"], "memory_mib": state["plan"]["memory_mib"]}
        decision = {"act": True, "replicas": self.replicas, **size}
        return Recommendation(decision, "by test", self.name, f"d{len(self.states)}")

    def feedback(self, application, id, outcome):
        self.outcomes.append((id, outcome))


class Stand:
    """A deployment with a dashboard and a node; samples are taken by hand."""

    def __init__(self, stack, mode="act", replicas=5, names=(NAME,), **given):
        self.clock, self.dashboard = fakes.Clock(), fakes.Dashboard()
        self.nodes = fakes.Nodes(done={"r0": 0.0, "r1": 0.0})
        metrics, _ = stack.enter_context(
            fakes.http_server(lambda *_: (200, self.nodes.text().encode()))
        )
        url, self.received = stack.enter_context(fakes.http_server(self.dashboard.respond))
        self.dashboard.targets = [metrics.removeprefix("http://")]
        settings = build_settings(RayServeSettings, {"dashboard": url, "deadline_s": 2.0, **given})
        client = Dashboard(url, "secret", 2.0)
        stack.callback(client.close)
        self.names, self.sampler = names, Sampler(settings, client, self.clock)
        self.sampler.stop()  # no thread
        self.recommender = Decides(replicas)
        self.steerer = Steerer(self.recommender, mode)

    def sample(self, count=1, requests=20.0):
        self.sampler.deployments(self.names)
        for _ in range(count):
            self.sampler.sample()
            self.nodes.arrivals += requests
            self.nodes.done = {name: done + requests / 2 for name, done in self.nodes.done.items()}
            self.clock.now_s += 15.0

    def step(self):
        (one,) = self.sampler.deployments(self.names)
        return self.steerer.step(one, 1e9)

    def posts(self):
        return [one for one in self.received if one.method == "POST"]


@pytest.fixture
def stand():
    with ExitStack() as stack:
        yield lambda **given: Stand(stack, **given)


def test_act_scales_and_reports_the_outcome(stand):
    one = stand()
    one.sample(5)
    result = one.step()
    assert result.result == "acted"
    assert result.wanted == {"replicas": 5.0}
    (post,) = one.posts()
    assert post.path == "/api/v1/applications/shop/deployments/Model/scale"
    assert post.body == {"target_num_replicas": 5}
    assert post.authorization == "Bearer secret"
    state = AwareState.model_validate(one.recommender.states[0])
    assert state.plan.replicas == 2
    assert state.bounds.cpu_m == (2000.0, 2000.0)  # max_ongoing_requests
    one.sample(4)
    assert one.step().result == "unchanged"
    assert [id for id, _ in one.recommender.outcomes] == ["d1"]
    assert len(one.posts()) == 1


def test_step_that_follows_at_once_has_no_outcome(stand):
    one = stand()
    one.sample(5)
    one.step()
    one.sample(1)  # the first step has waited, so the next one is due
    one.step()
    assert one.recommender.outcomes == []


@pytest.mark.parametrize("mode", ["watch", "shadow"])
def test_other_modes_change_nothing(stand, mode):
    one = stand(mode=mode)
    one.sample(5)
    result = one.step()
    assert result.result == "dry-run"
    assert result.wanted == {"replicas": 5.0}
    assert not one.posts()


def test_bounds_and_settings_of_a_deployment(stand):
    one = stand(max_replicas=8, slo_s=2.0, deployments={NAME: {"max_replicas": 3, "slots": 4}})
    one.sample(5)
    assert one.step().wanted == {"replicas": 3.0}
    assert one.recommender.states[0]["bounds"]["cpu_m"] == [4000.0, 4000.0]
    assert one.recommender.states[0]["slo_s"] == 2.0


def test_no_replica_is_removed_above_the_slo(stand):
    one = stand(replicas=1, slo_s=0.1)
    one.sample(5)
    assert one.step().wanted == {"replicas": 2.0}


def test_application_without_permission_is_refused(stand):
    one = stand()
    one.dashboard.external = False
    one.sample(5)
    result = one.step()
    assert result.result == "refused"
    assert result.degraded
    assert not one.posts()


@pytest.mark.parametrize("status", [404, 409, 412])
def test_refusals_are_results(stand, status):
    one = stand()
    one.sample(5)
    one.dashboard.status = status
    result = one.step()
    assert result.result == "refused"
    assert any(str(status) in text for text in result.messages)


def test_dead_dashboard_is_silent_and_recovers(stand):
    one = stand()
    one.sample(5)
    (deployment,) = one.sampler.deployments(one.names)
    one.dashboard.status = 500
    assert one.steerer.step(deployment, 1e9).silent == "engine"
    with pytest.raises(SilentError):
        one.sampler.sample()
    one.dashboard.status = 200
    one.sample(1)
    assert one.step().result == "acted"


def test_stale_samples_are_silent(stand):
    one = stand()
    one.sample(5)
    one.clock.now_s += 120.0
    result = one.step()
    assert result.silent == "metrics"
    assert not one.posts()


def test_switched_off_deployment_is_held(stand):
    one = stand()
    one.sample(5)
    one.dashboard.replicas = 0
    assert one.step().result == "held"


def test_all_deployments_that_permit_it(stand):
    one = stand(names=())
    assert [found.application for found in one.sampler.deployments(())] == [NAME]
    one.dashboard.external = False
    with pytest.raises(InputError):
        one.sampler.deployments(())


def test_deleted_deployment_does_not_stop_the_others(stand, monkeypatch):
    one = stand()
    one.sample(5)
    monkeypatch.setattr(one.sampler, "_known", dict(one.sampler._known))
    one.sampler._known["gone/Model"] = engine.ServeDeployment(
        "gone/Model", one.sampler._settings, one.sampler._dashboard, one.clock
    )
    results = []
    assert steer(
        lambda: one.sampler.deployments(["gone/Model", NAME]),
        one.steerer, results.append, None, False, threading.Event(),
    )  # fmt: skip
    assert [(found.application, found.result) for found in results] == [
        ("gone/Model", "invalid"), (NAME, "acted"),
    ]  # fmt: skip
    one.sampler.sample()


@pytest.mark.parametrize("name", ["shop/Modell", "shopp/Model"])
def test_unknown_deployments_are_bad_input(stand, name):
    with pytest.raises(InputError, match="did you mean"):
        stand().sampler.deployments([name])


@pytest.mark.parametrize(
    ("names", "given"),
    [
        pytest.param(["shop"], {}, id="no deployment"),
        pytest.param([NAME], {"dashboard": "ftp://x"}, id="no http"),
        pytest.param([NAME], {"deployments": {NAME: {"slo": 1}}}, id="unknown setting"),
        pytest.param([NAME], {"min_replicas": 5, "max_replicas": 2}, id="bounds"),
        pytest.param([NAME], {"ray_token_file": "/nowhere/token"}, id="no token file"),
    ],
)
def test_bad_settings_are_bad_input(names, given):
    with (
        pytest.raises(InputError),
        connect(build_settings(RayServeSettings, given), names, "watch"),
    ):
        pass


def test_token_that_is_refused_is_bad_input():
    with fakes.http_server(lambda *_: (401, b"no")) as (url, _):
        settings = build_settings(RayServeSettings, {"dashboard": url})
        with (
            connect(settings, [NAME], "watch") as list_deployments,
            pytest.raises(InputError, match="ray_token_file"),
        ):
            list_deployments()


@pytest.mark.slow
def test_first_state_is_waited_for(stand, monkeypatch):
    monkeypatch.setattr(engine, "FIRST_STEP_S", 0.1)
    one = stand(step_s=2.0)
    (deployment,) = one.sampler.deployments(one.names)
    assert one.steerer.step(deployment, 1e9).silent == "metrics"
