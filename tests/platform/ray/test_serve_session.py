"""The service as an application of a shared cluster, on a fake Serve."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import build_settings
from loadmaster.platform.ray.serve_session import (
    own_head_cpus,
    refuse_token_variable,
    serving_on_cluster,
)
from loadmaster.serving.settings import ServeSettings

Patch = pytest.MonkeyPatch


class FakeServe:
    """Serve on a cluster of one node, with applications by name."""

    def __init__(self, patch: Patch, *names: str, runs: bool) -> None:
        import ray
        from ray import serve
        from ray.experimental import internal_kv

        from loadmaster.serving import app

        self.runs, self._clock = runs, 0.0
        self.applications: dict[str, Any] = {}
        self.built: Mapping[str, Any] = {}
        for name in names:
            self.add(name)
        patch.setattr(ray, "get_actor", self.get_actor)
        patch.setattr(ray, "nodes", lambda: [{"NodeID": "a", "NodeManagerAddress": "10.0.0.5"}])
        context = SimpleNamespace(get_node_id=lambda: "a")
        patch.setattr(ray, "get_runtime_context", lambda: context)
        patch.setattr(app, "build", self.build)
        owners: dict[bytes, bytes] = {}
        patch.setattr(internal_kv, "_internal_kv_get", owners.get)
        patch.setattr(internal_kv, "_internal_kv_put", owners.__setitem__)
        for name in ("start", "status", "delete", "shutdown", "run_many"):
            patch.setattr(serve, name, getattr(self, name))

    def add(self, name: str) -> None:
        self._clock += 1
        self.applications[name] = SimpleNamespace(
            status=SimpleNamespace(value="RUNNING"), last_deployed_time_s=self._clock
        )

    def get_actor(self, *_: str) -> None:
        if not self.runs:
            raise ValueError("no controller")

    def build(self, arguments: Mapping[str, Any]) -> None:
        self.built = arguments

    def start(self, proxy_location: str) -> None:
        assert proxy_location == "Disabled"
        self.runs = True

    def status(self) -> Any:
        return SimpleNamespace(applications=dict(self.applications))

    def delete(self, name: str) -> None:
        del self.applications[name]

    def shutdown(self) -> None:
        self.applications.clear()
        self.runs = False

    def run_many(self, targets: Any, **_: bool) -> None:
        (target,) = targets
        assert target.route_prefix is None
        self.add(target.name)


@pytest.mark.slow  # imports Serve
@pytest.mark.parametrize("runs", [False, True])
def test_serve_is_left_as_it_was(runs: bool, monkeypatch: Patch) -> None:
    fake = FakeServe(monkeypatch, runs=runs)
    with serving_on_cluster({"port": 1}):
        assert list(fake.applications) == ["loadmaster"]
        assert fake.built == {"port": 1, "resources": {"node:10.0.0.5": 0.001}}
    assert (fake.applications, fake.runs) == ({}, runs)


@pytest.mark.slow
def test_serve_of_others_is_not_stopped(monkeypatch: Patch) -> None:
    fake = FakeServe(monkeypatch, runs=False)
    with serving_on_cluster({"resources": {"big": 1.0}}, "mine"):
        fake.add("another")
        assert fake.built == {"resources": {"big": 1.0}}
    assert (list(fake.applications), fake.runs) == (["another"], True)


@pytest.mark.slow
def test_name_in_use_is_refused_or_replaced(monkeypatch: Patch) -> None:
    fake = FakeServe(monkeypatch, "mine", "another", runs=True)
    with pytest.raises(InputError, match="RUNNING"), serving_on_cluster({}, "mine"):
        pass
    assert list(fake.applications) == ["mine", "another"]
    with serving_on_cluster({}, "mine", replace=True):
        with serving_on_cluster({}, "mine", replace=True):
            pass
        assert list(fake.applications) == ["another"]
        fake.add("mine")  # deployed by another command
    assert list(fake.applications) == ["another", "mine"]


def test_tokens_in_a_variable_are_refused() -> None:
    refuse_token_variable({"PATH": "/bin"})
    with pytest.raises(InputError, match="--tokens"):
        refuse_token_variable({"LOADMASTER_TOKENS": "read 0123456789abcdef"})


def test_own_head_has_cpus_beyond_those_of_the_service(monkeypatch: Patch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    systems = {"das": {"cpus": 0.5, "workers": 3}, "decima": {}}
    settings = build_settings(ServeSettings, {"systems": systems})
    assert settings.reserved_cpus == 3.6
    assert own_head_cpus(settings) == 6
