"""GPU pods as an engine of jobs: starts, waits, expiry, failures, outcomes, whole episodes."""

import contextlib
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from loadmaster.envs.errors import InputError
from loadmaster.platform.cli.main import main
from loadmaster.platform.steering.core import Mode, StepResult
from loadmaster.platform.steering.jobs import Cadence, JobSteerer, Limits
from loadmaster.platform.steering.kubernetes.access import Access
from loadmaster.platform.steering.kubernetes.client import KubernetesClient
from loadmaster.platform.steering.kubernetes_gpu.engine import SPEC, GpuClusterEngine, connect
from loadmaster.platform.steering.kubernetes_gpu.extender import DecisionTable, extender_server
from loadmaster.platform.steering.kubernetes_gpu.records import parse_pod
from loadmaster.platform.steering.kubernetes_gpu.settings import GpuClusterSettings
from loadmaster.platform.steering.recommenders import find_recommender
from tests.platform.steering.kubernetes.api_server import DEADLINE_S, Fault, Json, serving
from tests.platform.steering.kubernetes_gpu.cluster import (
    EPOCH_S,
    GpuApi,
    Scheduler,
    gpu_node,
    gpu_pod,
)
from tests.platform.steering.test_jobs import Decider

RULE = "las-fastest"


class Steered:
    """A cluster in memory with its scheduler, and a steerer of it."""

    def __init__(
        self,
        stack: ExitStack,
        *objects: Json,
        decider: Any = None,
        mode: Mode = "act",
        limits: Limits | None = None,
        cadence: Cadence | None = None,
        **settings: Any,
    ) -> None:
        self.now_s = EPOCH_S
        self.api = GpuApi(*objects)
        url = stack.enter_context(serving(self.api.handle))
        self.client = KubernetesClient(Access(url, "secret"), deadline_s=DEADLINE_S)
        stack.callback(self.client.close)
        self.settings = GpuClusterSettings.model_validate(settings)
        self.table = DecisionTable(
            self.settings.ttl_s, self.settings.order, self.settings.new_s, self._holds,
            lambda: self.now_s,
        )  # fmt: skip
        server = ExitStack()
        self.end_server = server.close
        port = server.enter_context(extender_server(self.table, "127.0.0.1", 0))
        stack.callback(server.close)
        self.scheduler = Scheduler(self.api, f"http://127.0.0.1:{port}")
        self.engine = GpuClusterEngine(self.client, self.settings, self.table, EPOCH_S)
        recommender = decider or find_recommender([RULE], SPEC.endpoint)
        self.steerer = JobSteerer(recommender, mode, limits, cadence)

    def _holds(self, pod: Any) -> bool:
        found = parse_pod(pod, self.settings)
        return found is not None and not found.constrained

    def step(self, seconds: float = 1.0) -> StepResult:
        """kube-scheduler is faster than the steerer, and tries again after it."""
        self.scheduler.run(self.now_s)
        self.now_s += seconds
        result = self.steerer.step(self.engine, self.now_s)
        self.scheduler.run(self.now_s)
        return result

    def patches(self) -> list[str]:
        return [one.path for one in self.api.received if one.method == "PATCH"]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def start(job: str, **machines: int) -> dict[str, Any]:
    where = [{"machine": name, "instances": count} for name, count in machines.items()]
    return {"job": job, "placements": where}


def wait(jobs: int = 0) -> dict[str, Any]:
    return {"start": [], "stop": [], "wait": jobs}


def test_scores_alone_place_a_pod_that_waits_for_the_decision(stack: ExitStack) -> None:
    decider = Decider(start=[start("team/b", n2=1)], stop=[], wait=0)
    nodes = [gpu_node("n1", unschedulable=True), gpu_node("n2"), gpu_node("n3", 8)]
    steered = Steered(stack, *nodes, decider=decider)
    first = gpu_pod("a", 8)
    steered.api.add(first)  # is placed by the scheduler at once
    result = steered.step()
    assert steered.api.where() == {"a": "n3"}
    assert result.commands == ()  # team/b is not there yet
    steered.table.start({"uid-b": "n2"})
    steered.api.finish("a", steered.now_s)
    steered.api.add(gpu_pod("b"))
    steered.scheduler.run(steered.now_s)
    assert steered.api.where() == {"b": "n2"}  # n3 has more free GPUs
    assert steered.patches() == []


@pytest.mark.parametrize("mode", ["watch", "shadow"])
def test_nothing_is_published_without_act(stack: ExitStack, mode: Mode) -> None:
    steered = Steered(stack, gpu_node("n1", 1), mode=mode, order=True)
    steered.api.add(gpu_pod("a"), gpu_pod("b"))
    results = [steered.step() for _ in range(3)]
    assert {one.result for one in results} == {"unchanged"}  # b does not fit beside a
    steered.api.finish("a", steered.now_s)
    steered.now_s += 1
    result = steered.steerer.step(steered.engine, steered.now_s)
    assert (result.result, result.commands) == ("dry-run", ("start team/b on n1 x1",))
    assert steered.table.counts() == {"starts": 0, "waits": 0, "live": False}
    assert steered.patches() == []


def test_order_is_that_of_the_decision_and_held_pods_say_why(stack: ExitStack) -> None:
    decider = Decider(**wait())
    steered = Steered(stack, gpu_node("n1", 2), gpu_node("n2", 2), decider=decider, order=True)
    steered.step()  # nothing waits; new pods are held from here on
    steered.api.add(*(gpu_pod(name, 2) for name in "abc"))
    decider.decision = {"start": [start("team/c", n2=1)], "stop": [], "wait": 2}
    assert steered.step().commands == ("start team/c on n2 x1",)
    assert steered.api.where() == {"c": "n2"}
    decider.decision = {"start": [start("team/b", n1=1)], "stop": [], "wait": 1}
    steered.step()
    assert steered.scheduler.order == ["c", "b"]
    steered.step()
    steered.api.finish("c", steered.now_s)
    steered.scheduler.run(steered.now_s)
    assert "loadmaster: waits; decider: because" in steered.scheduler.events["a"]
    assert set(steered.api.where()) == {"b"}


def test_gang_starts_with_all_pods_each_on_its_node(stack: ExitStack) -> None:
    decider = Decider(**wait())
    steered = Steered(stack, gpu_node("n1"), gpu_node("n2"), decider=decider, order=True)
    steered.step()
    steered.api.add(*(gpu_pod(f"w-{k}", 2, "gang") for k in range(3)))
    decider.decision = {"start": [start("team/gang", n2=2, n1=1)], "stop": [], "wait": 0}
    assert steered.step().commands == ("start team/gang on n2 x2, n1 x1",)
    assert steered.api.where() == {"w-0": "n2", "w-1": "n2", "w-2": "n1"}
    # Of a decision about two pods, where there are three: nothing is started in part.
    steered.api.add(*(gpu_pod(f"v-{k}", 1, "other") for k in range(3)))
    decider.decision = {"start": [start("team/other", n1=2)], "stop": [], "wait": 0}
    assert steered.step(20).commands == ()
    assert len(steered.api.where()) == 3


def test_start_that_is_not_bound_is_tried_again_then_left_to_the_scheduler(
    stack: ExitStack,
) -> None:
    decider = Decider(**wait())
    steered = Steered(stack, gpu_node("n1"), gpu_node("n2"), decider=decider, order=True, ttl_s=20)
    steered.step()
    steered.api.add(gpu_pod("a"))
    decider.decision = {"start": [start("team/a", n1=1)], "stop": [], "wait": 0}
    passed, free = steered.scheduler.free, {"n2": 4}
    steered.scheduler.free = lambda: free  # type: ignore[method-assign]  # n1 lacks a disk
    starts = [steered.step(5).commands for _ in range(16)]
    assert [bool(one) for one in starts].count(True) == 3
    assert steered.api.where() == {"a": "n2"}
    steered.scheduler.free = passed  # type: ignore[method-assign]


def test_silent_service_leaves_all_pods_to_the_scheduler(stack: ExitStack) -> None:
    decider = Decider(**wait(1))
    cadence = Cadence(stale_s=30)
    steered = Steered(stack, gpu_node("n1"), decider=decider, order=True, cadence=cadence)
    steered.step()
    steered.api.add(gpu_pod("a"))
    for _ in range(10):
        steered.step()
    assert steered.api.where() == {}
    decider.decision, silent_s = None, steered.now_s
    while not steered.api.where():
        steered.step()
        assert steered.now_s < silent_s + 30 + 20 + 3  # stale_s, ttl_s
    assert steered.now_s > silent_s + 10


def test_steerer_that_hangs_leaves_pods_to_the_scheduler(stack: ExitStack) -> None:
    steered = Steered(stack, gpu_node("n1"), decider=Decider(**wait(1)), order=True)
    steered.step()
    steered.api.add(gpu_pod("a"))
    steered.step()
    steered.step()
    assert steered.api.where() == {}
    steered.now_s += 20
    steered.api.add(gpu_pod("b"))  # a new pod, or any event; a waits for one
    steered.scheduler.run(steered.now_s)
    assert steered.api.where() == {"b": "n1"}


def test_dead_adapter_is_ignored_by_the_scheduler(stack: ExitStack) -> None:
    steered = Steered(stack, gpu_node("n1"), decider=Decider(**wait(1)), order=True)
    steered.step()
    steered.end_server()
    steered.api.add(gpu_pod("a"), gpu_pod("b"))
    steered.scheduler.run(steered.now_s)
    assert set(steered.api.where()) == {"a", "b"}
    assert len(steered.scheduler.silences) == 2


def test_end_gives_pods_back_at_once(stack: ExitStack) -> None:
    steered = Steered(stack, gpu_node("n1"), decider=Decider(**wait(1)), order=True)
    steered.step()
    steered.api.add(gpu_pod("a"))
    steered.step()
    assert steered.api.where() == {}
    steered.engine.release()
    steered.scheduler.run(steered.now_s)
    assert steered.api.where() == {"a": "n1"}


def test_silent_api_server_is_degraded_and_nothing_is_lost(stack: ExitStack) -> None:
    steered = Steered(stack, gpu_node("n1"), order=True)
    steered.step()
    steered.api.add(gpu_pod("a"))
    steered.api.faults = [Fault("GET", "/api/v1/pods", 403)]
    result = steered.step()
    assert (result.silent, result.degraded) == ("engine", True)
    assert steered.step().commands == ("start team/a on n1 x1",)
    assert steered.api.where() == {"a": "n1"}
    with serving(lambda *_: (500, {}, {})) as url:
        gone = KubernetesClient(Access(url, "secret"), deadline_s=0.3)
    engine = GpuClusterEngine(gone, steered.settings, steered.table)
    assert steered.steerer.step(engine, steered.now_s).silent == "engine"
    gone.close()


def test_without_the_right_to_patch_no_pod_is_held_back(stack: ExitStack) -> None:
    steered = Steered(stack, gpu_node("n1"), order=True)
    steered.step()
    steered.api.add(gpu_pod("a"))
    steered.api.faults = [Fault("PATCH", "/pods/", 403, times=99)]
    result = steered.step()
    assert (result.result, steered.table.placed()) == ("refused", {})
    assert any("403" in one for one in result.messages)
    steered.api.add(gpu_pod("b"))  # is not held back, a is until the next event
    steered.step()
    assert (steered.api.where(), steered.table.counts()["live"]) == ({"b": "n1"}, False)
    steered.api.faults = []
    for _ in range(20):
        steered.step()
    assert steered.api.where() == {"a": "n1", "b": "n1"}
    steered.step()
    assert steered.table.counts()["live"]


def test_limit_of_commands_does_not_let_waits_expire(stack: ExitStack) -> None:
    decider = Decider(**wait())
    limits = Limits(commands_per_minute=4)
    steered = Steered(stack, gpu_node("n1", 8), decider=decider, order=True, limits=limits)
    steered.step()
    steered.api.add(*(gpu_pod(name) for name in "abcdef"))
    starts = [start(f"team/{name}", n1=1) for name in "abcdef"]
    decider.decision = {"start": starts, "stop": [], "wait": 0}
    assert len(steered.step().commands) == 2
    assert sorted(steered.api.where()) == ["a", "b"]


def test_stops_are_dropped_and_pods_placed_in_the_next_step(stack: ExitStack) -> None:
    pods = [gpu_pod("a", 4, node="n1", started_s=EPOCH_S), gpu_pod("b", 4)]
    decider = Decider(start=[start("team/b", n1=1)], stop=["team/a"], wait=1)
    steered = Steered(stack, gpu_node("n1"), *pods, decider=decider)
    assert steered.step().commands == ()
    observed = steered.engine.observe(steered.now_s)
    assert observed.state is not None
    assert observed.state["ask"] == "placing"


def test_outcomes_are_those_of_jobs_whose_pods_have_all_succeeded(stack: ExitStack) -> None:
    decider = Decider(**wait())
    steered = Steered(stack, gpu_node("n1", 8), decider=decider, order=True)
    steered.step()
    steered.api.add(*(gpu_pod(f"w-{k}", 1, "gang") for k in range(2)), gpu_pod("fails"))
    starts = [start("team/gang", n1=2), start("team/fails", n1=1)]
    decider.decision = {"start": starts, "stop": [], "wait": 0}
    steered.step()
    decider.decision = wait()
    begun_s = steered.now_s
    steered.api.finish("w-0", begun_s + 5)
    steered.api.finish("fails", begun_s + 5, "Failed")
    steered.step()
    assert decider.outcomes == []
    steered.api.finish("w-1", begun_s + 9)
    for _ in range(3):
        steered.step(10)
    ((id, outcome),) = decider.outcomes
    assert id is not None
    expected = {"job": "team/gang", "completion_s": begun_s + 9 - EPOCH_S, "run_s": 9.0}
    assert outcome == expected


@pytest.mark.slow
def test_episode_in_which_a_rule_places_all_jobs(stack: ExitStack) -> None:
    nodes = [gpu_node("n1"), gpu_node("n2"), gpu_node("n3", product="Tesla-T4")]
    steered = Steered(stack, *nodes, order=True)
    steered.step()
    expected = set()
    for number in range(9):
        count, gpus = (1, 3, 2)[number % 3], (1, 2, 4)[number % 3]
        created_s = steered.now_s + number
        for place in range(count):
            name = f"j{number}-{place}"
            expected.add(name)
            steered.api.add(gpu_pod(name, gpus, f"j{number}", created_s=created_s))
    ends: dict[str, float] = {}
    for _ in range(400):
        steered.step()
        for name in steered.api.where():
            ends.setdefault(name, steered.now_s + 8)
        for name in [one for one, end_s in ends.items() if end_s <= steered.now_s]:
            if steered.api.pod(name)["status"]["phase"] == "Running":
                steered.api.finish(name, steered.now_s)
        assert all(gpus >= 0 for gpus in steered.scheduler.free().values())
        if len(ends) == len(expected) and not steered.api.where():
            break
    assert set(ends) == expected
    started: dict[str, set[float]] = {}
    for name, end_s in ends.items():
        started.setdefault(name.partition("-")[0], set()).add(end_s)
    assert all(len(times) == 1 for times in started.values())  # gangs start together


def test_cluster_without_gpus_is_one_line(stack: ExitStack) -> None:
    steered = Steered(stack, gpu_pod("a"))
    with pytest.raises(InputError, match="no node with GPUs"):
        steered.step()


def kubeconfig(folder: Path, url: str) -> Path:
    file = folder / "kubeconfig"
    content = {
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    file.write_text(yaml.safe_dump(content))
    return file


def command(file: Path, *more: str) -> int:
    given: Sequence[str] = ("steer", "kubernetes-gpu", "--recommender", RULE, "--once", *more)
    return main([*given, "--kubeconfig", str(file)])


def test_command(stack: ExitStack, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    api = GpuApi(gpu_node("n1"), gpu_pod("a"))
    file = kubeconfig(tmp_path, stack.enter_context(serving(api.handle)))
    assert command(file, "--set", "port=0") == 0
    assert "start team/a on n1 x1" in capsys.readouterr().out
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert command(file, "--set", f"port={taken.getsockname()[1]}") == 2
    assert "cannot listen on 127.0.0.1:" in capsys.readouterr().err
    with contextlib.suppress(InputError), connect(GpuClusterSettings(), ["a", "b"], "watch"):
        pytest.fail("two clusters were accepted")
