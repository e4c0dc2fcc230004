"""`loadmaster steer kubernetes`: exit codes, one-line errors, output, faults while it runs."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from loadmaster.platform.steering.kubernetes.quantities import parse_quantity
from tests.platform.cli.one_line import Cli
from tests.platform.steering.kubernetes import api_server
from tests.platform.steering.kubernetes.api_server import DEPLOYMENT, MPA, Fault, serving
from tests.platform.steering.kubernetes.simulation import (
    SimulatedCluster,
    SimulatedPrometheus,
    new_runner,
)

HPA = "/apis/autoscaling/v1/namespaces/shop/horizontalpodautoscalers/cart"


class Shop:
    """A cluster with one application, and the command line that steers it."""

    def __init__(self, stack: ExitStack, folder: Path, cli: Cli) -> None:
        self.cluster = SimulatedCluster(new_runner(1, application="webServe", steps=5))
        self.metrics = SimulatedPrometheus(self.cluster)
        self.cli = cli
        server = stack.enter_context(serving(self.cluster.handle))
        self.prometheus = stack.enter_context(serving(self.metrics.handle))
        self.file = folder / "config"
        content = {
            "current-context": "a",
            "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
            "clusters": [{"name": "a", "cluster": {"server": server}}],
            "users": [{"name": "a", "user": {"token": "secret"}}],
        }
        self.file.write_text(yaml.safe_dump(content))

    def line(self, options: str = "--recommender hpa", name: str = "shop/cart") -> str:
        return (
            f"steer kubernetes {name} --once --kubeconfig {self.file} "
            f"--prometheus {self.prometheus} {options}"
        )

    def change_spec(self, **spec: Any) -> None:
        self.cluster.objects[MPA]["spec"].update(spec)

    def error(self, options: str = "--recommender hpa", name: str = "shop/cart") -> str:
        return self.cli.error(self.line(options, name))


@pytest.fixture
def shop(tmp_path: Path, cli: Cli) -> Iterator[Shop]:
    with ExitStack() as stack:
        yield Shop(stack, tmp_path, cli)


def test_dry_run_prints_the_recommendation(shop: Shop) -> None:
    shown = shop.cli(shop.line())
    assert shown.out.startswith("shop/cart dry-run: ")
    assert (shown.err, shop.cluster.changes()) == ("", [])
    assert shop.cluster.objects[MPA]["status"]["mode"] == "DryRun"


def test_apply_acts_and_json_has_the_whole_step(shop: Shop) -> None:
    step = shop.cli.json(shop.line("--apply --recommender window-peak"))
    assert (step["result"], step["degraded"]) == ("acted", False)
    assert step["wanted"]["cpu_m"] < step["plan"]["cpu_m"]
    assert any(one.path.endswith("/resize") for one in shop.cluster.changes())


def test_all_applications_of_a_namespace(shop: Shop) -> None:
    assert shop.cli(shop.line("--recommender hpa --namespace shop", "")).out.count("\n") == 1
    assert "no MultidimPodAutoscaler" in shop.error("--recommender hpa --namespace empty", "")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"sloSeconds": 0}, "shop/cart: sloSeconds is 0; expected"),
        ({"minReplicas": 30}, "bounds of replicas are 30 to 20"),
        ({"minAllowed": {"cpu": "4", "memory": "1Gi"}}, "bounds of cpu_m are 4000 to 2048"),
        ({"maxAllowed": {"cpu": "4", "memory": "many"}}, "'many'; expected a quantity"),
        ({"queries": {"reports.cpu": "1"}}, "unknown query 'reports.cpu'"),
        ({"queries": {"reports.pods": "$nothing"}}, "expected only $pods"),
        ({"targetRef": {"name": "basket"}}, "Deployment 'basket' does not exist"),
        ({"container": "ap"}, "did you mean 'app'?"),
        ({"latencyMetric": "a b"}, "latencyMetric is 'a b'"),
        ({"updateMode": "Sometimes"}, "updateMode"),
    ],
)
def test_wrong_object_is_one_line(spec: Any, words: str, shop: Shop) -> None:
    shop.change_spec(**spec)
    assert words in shop.error()


def test_wrong_object_has_it_in_its_status(shop: Shop) -> None:
    shop.change_spec(minReplicas=30)
    shop.error()
    conditions = shop.cluster.objects[MPA]["status"]["conditions"]
    assert {one["type"]: one["reason"] for one in conditions}["Degraded"] == "Invalid"


def test_container_without_limits_is_one_line(shop: Shop) -> None:
    template = shop.cluster.objects[DEPLOYMENT]["spec"]["template"]["spec"]
    del template["containers"][0]["resources"]["limits"]["memory"]
    assert "has no memory limit" in shop.error()


@pytest.mark.parametrize(
    ("options", "name", "words"),
    [
        ("--recommender hpa", "shop/cat", "unknown application 'shop/cat'"),
        ("--recommender hpa", "cart", "expected NAMESPACE/NAME"),
        ("--recommender hpaa", "shop/cart", "unknown recommender 'hpaa'"),
        ("--every 0", "shop/cart", "every_s"),
        ("--window 0", "shop/cart", "window_s"),
        ("--url ftp://a", "shop/cart", "invalid url"),
        ("--context b --recommender hpa", "shop/cart", "unknown context 'b'"),
        ("--recommender hpa --prometheus a:b", "shop/cart", "--prometheus: invalid url"),
    ],
)
def test_wrong_option_is_one_line(options: str, name: str, words: str, shop: Shop) -> None:
    assert words in shop.error(options, name)


def test_unknown_engine_is_one_line(cli: Cli) -> None:
    assert "did you mean 'kubernetes'?" in cli.error("steer kubernets")


def test_series_that_are_missing_are_one_line_at_first_and_degraded_later(shop: Shop) -> None:
    shop.metrics.missing = {"steps.requests"}
    assert "no series for steps.requests of shop/cart" in shop.error()
    shop.metrics.missing = set()
    shop.cli(shop.line())
    shop.metrics.missing = {"steps.requests"}
    shown = shop.cli(shop.line(), code=1)
    assert "silent metrics" in shown.err


def test_silent_service_is_degraded(shop: Shop) -> None:
    shown = shop.cli(shop.line("--url http://127.0.0.1:9"), code=1)
    assert shown.err.startswith("error: shop/cart silent: ")
    rule = shop.cli(shop.line("--url http://127.0.0.1:9 --recommender service --recommender hpa"))
    assert "by hpa" in rule.out


def test_object_names_its_own_recommenders(shop: Shop) -> None:
    shop.change_spec(recommenders=["service", "window-peak"])
    shown = shop.cli(shop.line("--url http://127.0.0.1:9 --recommender hpa"))
    assert "by window-peak" in shown.out
    for name in ("os:system", "hpaa"):  # objects load no code
        shop.change_spec(recommenders=[name])
        assert f"unknown recommender '{name}'" in shop.error()


def test_target_of_an_hpa_is_refused_with_apply(shop: Shop) -> None:
    reference = {"kind": "Deployment", "name": "cart", "apiVersion": "apps/v1"}
    data = {"metadata": {"name": "cart"}, "spec": {"scaleTargetRef": reference}}
    shop.cluster.put(HPA, data)
    assert "the engine would refuse to act" in shop.cli(shop.line()).out
    shown = shop.cli(shop.line("--apply --recommender hpa"), code=1)
    assert "HorizontalPodAutoscaler 'cart' already moves Deployment 'cart'" in shown.err
    assert shop.cluster.changes() == []


def test_application_that_is_switched_off_is_held(shop: Shop) -> None:
    shop.cluster.objects[DEPLOYMENT]["spec"]["replicas"] = 0
    assert "switched off" in shop.cli(shop.line("--apply --recommender hpa")).out
    assert shop.cluster.changes() == []


def test_pause_holds(shop: Shop) -> None:
    metadata = shop.cluster.objects[MPA]["metadata"]
    metadata["annotations"] = {"loadmaster.dev/paused": "true"}
    shown = shop.cli(shop.line("--apply --recommender hpa"))
    assert shown.out.startswith("shop/cart held: ")
    assert shop.cluster.changes() == []
    shop.change_spec(updateMode="Off")
    shop.cluster.objects[MPA]["metadata"]["annotations"] = {}
    assert "updateMode is Off" in shop.cli(shop.line("--apply --recommender hpa")).out


def test_status_that_conflicts_is_written_again(shop: Shop) -> None:
    shop.cluster.faults = [Fault("PATCH", "/status", 409)]
    shop.cli(shop.line())
    assert shop.cluster.objects[MPA]["status"]["mode"] == "DryRun"
    shop.cluster.faults = [Fault("PATCH", "/status", 403)]
    assert "not published" in shop.cli(shop.line(), code=1).err


def test_events_of_changes_and_their_refusal(shop: Shop) -> None:
    shop.cluster.faults = [Fault("POST", "/events", 403)]
    shop.cli(shop.line("--apply --recommender window-peak"))
    events = [one for one in shop.cluster.received if one.path.endswith("/events")]
    assert [(one.body["type"], one.body["reason"]) for one in events] == [("Normal", "Acted")]


def test_memory_is_not_lowered_after_an_oom(shop: Shop) -> None:
    reports = shop.cluster.runner.episode.state.reports
    now = int(shop.cluster.runner.episode.state.clock[0])
    step = shop.cli.json(shop.line("--recommender window-peak"))
    assert step["wanted"]["memory_mib"] < step["plan"]["memory_mib"]
    reports[now - 8, -2] = 1.0  # R_OOMS
    step = shop.cli.json(shop.line("--recommender window-peak"))
    assert step["wanted"]["memory_mib"] == step["plan"]["memory_mib"]


def test_unreachable_cluster_is_degraded(shop: Shop) -> None:
    content = yaml.safe_load(shop.file.read_text())
    content["clusters"][0]["cluster"]["server"] = "http://127.0.0.1:9"
    shop.file.write_text(yaml.safe_dump(content))
    assert "API server" in shop.cli(shop.line(), code=1).err


@pytest.mark.parametrize(
    ("text", "value"),
    [("500m", 0.5), ("2", 2), (2, 2), ("1.5Gi", 1.5 * 2**30), ("1e3", 1000), ("128M", 128e6)],
)
def test_quantities(text: Any, value: float) -> None:
    assert parse_quantity(text, "cpu") == pytest.approx(value)


def test_schema_refuses_what_the_command_refuses() -> None:
    schema = api_server.mpa_schema()
    jsonschema.validate(api_server.mpa_object(), schema)
    for spec in ({"sloSeconds": 0}, {"updateMode": "Sometimes"}, {"minReplicas": 0}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(json.loads(json.dumps(api_server.mpa_object(**spec))), schema)
