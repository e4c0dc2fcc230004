"""The endpoint `aware` with 1,000 known applications: latency, size of each, and a kill of all.

The applications are those of the simulator, and carry out what the service decides. Each one is
known when it got DECISIONS decisions and reported their outcomes. Then every process of the service
is killed at once. Afterwards decisions over HTTP must be those of a policy in this process, which
remembers the applications by itself. No-op requests have the same bodies as those of the service.
"""

import asyncio
import sqlite3
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from loadmaster.envs.errors import InputError
from loadmaster.envs.pod_scaling.application_files import load_applications
from loadmaster.envs.pod_scaling.applications import TEST, TRAIN
from loadmaster.envs.pod_scaling.episode import build_setup
from loadmaster.envs.pod_scaling.settings import PodScalingSettings
from loadmaster.platform.bench.bench_server import NOOP, BenchServer, bench_server
from loadmaster.platform.bench.http_load import Load
from loadmaster.platform.bench.http_load import measure as measure_load
from loadmaster.platform.bench.measurements import Figure
from loadmaster.platform.bench.pod_client import SYSTEM, PodClient
from loadmaster.platform.bench.tenant_decider import TenantDecider, traced_bytes
from loadmaster.platform.ray.head import HERE, free_ports
from loadmaster.serving.client import Client, Decision
from loadmaster.serving.decisions.policy_memory import with_line
from loadmaster.serving.decisions.request import POLICY, Decided, to_json
from loadmaster.serving.decisions.tenant_names import DEFAULT_TENANT, TenantSettings, tenant_of
from loadmaster.serving.policies.store import resolve_bundle
from loadmaster.serving.system import find_endpoint
from loadmaster.serving.systems.aware.schema import AwareOutcome
from loadmaster.serving.worker.worker import PolicyRunner

APPLICATIONS = 1000
STEPS = 15  # with one plan, before the first decision
DECISIONS = 2  # of each application, before the kill
OFFLINE_EVERY = 50  # one application in so many has a profile that lets the rule act
ROUNDS, SECONDS, WARMUP_S = 5, 3.0, 0.3
SETTLE_S = 0.2  # from the last response to the kill; the service writes changes every 50 ms
PATIENCE_S = 120.0
HOUR, DAY = 60, 1440  # control steps
DAY_APPLICATIONS = 3
GOAL_KB, GOAL_MS = 32.0, 3.0
_PLAN = np.array([0.0, 0.0, 0.1], np.float32)  # the action before the first decision


class LocalPolicy:
    """The shipped policy and its rule in this process, as a worker of the service has them."""

    def __init__(self) -> None:
        endpoint = find_endpoint(SYSTEM)
        self._runner = PolicyRunner(endpoint, endpoint.rules[0])
        self._folder = str(resolve_bundle(endpoint.pretrained))
        self.version = self._runner.load(self._folder).version

    def decide(self, raw: bytes, memory: str) -> Decided:
        decided = self._runner.decide(raw, self.version, self._folder, memory)
        if not isinstance(decided, Decided):
            raise RuntimeError(f"the state is invalid: {decided.line}")
        return decided

    def decide_by_rule(self, raw: bytes) -> Decided:
        return self._runner.decide_by_rule(self._runner.state(raw))


@dataclass
class KnownApplication:
    """An application, and what a policy in this process remembers of it."""

    pods: PodClient
    offline: bool  # the rule acts
    memory: str = ""
    differences: list[str] = field(default_factory=list)  # from the decisions of the service

    @property
    def tenant(self) -> str:
        return tenant_of(self.pods.name)

    def request(self) -> bytes:
        return to_json({"state": self.pods.state().model_dump(mode="json", exclude_unset=True)})

    def decide(self, policy: LocalPolicy) -> Decided:
        """The decision that is expected from the service about the present state."""
        raw = self.request()
        decided = policy.decide(raw, self.memory)
        if decided.memory:
            self.memory = with_line(self.memory, decided.memory)
        return policy.decide_by_rule(raw) if self.offline else decided

    def compare(self, found: Decision, expected: Decided) -> None:
        if not found.guard and dict(found.decision) != dict(expected.decision):
            self.differences.append(f"{found.decision} over HTTP, {expected.decision} here")


class Kept(NamedTuple):
    """What the service keeps of an application."""

    lifecycle: Any  # state, since when and why, over HTTP
    profile: Any
    memory: str | None  # in the database, as the next one
    guard: tuple[tuple[str, str], ...]
    decisions: int  # that were counted


def measure(report_step: Callable[[str], None], applications: int | None = None) -> list[Figure]:
    count = APPLICATIONS if applications is None else applications
    name = f"tenants/{SYSTEM}-{count}"
    report_step(f"simulate {count:,} applications")
    fleet = simulate(count)
    with bench_server({SYSTEM: {}}, report_step) as service:
        from loadmaster.platform.bench.noop import start_noops

        noop = start_noops(HERE, free_ports(1)[0])[NOOP]
        figures = [*survive_kill(service, fleet, name, report_step)]
        figures += load_all(service, noop, fleet, name, report_step)
        figures += disk_figures(service, count, name)
    return [*figures, *memory_figures(fleet, name, report_step)]


def simulate(count: int, steps: int = STEPS) -> list[KnownApplication]:
    """The first applications of the generated set, some control steps into an episode."""
    known = load_applications(TRAIN, None) + load_applications(TEST, None)
    if count > len(known):
        raise InputError(f"--applications is {count}; expected at most {len(known)}")
    settings, fleet = PodScalingSettings(steps=steps + DECISIONS + 2), []
    setup = build_setup(settings)
    for number, application in enumerate(known[:count]):
        pods = PodClient(settings, setup._replace(applications=(application,)), number)
        for _ in range(steps):
            pods.runner.decide(_PLAN)
        fleet.append(KnownApplication(pods, offline=number % OFFLINE_EVERY == 0))
    return fleet


def survive_kill(
    service: BenchServer,
    fleet: Sequence[KnownApplication],
    name: str,
    report_step: Callable[[str], None],
) -> Iterator[Figure]:
    """Make all applications known, kill the service, and compare what it knows afterwards."""
    from loadmaster.platform.bench.kills import kill_all

    with Client(service.url, deadline_s=10.0) as client:
        policy = LocalPolicy()
        for one in fleet:
            if one.offline:
                client.profile(SYSTEM, {"bootstrap": True}, tenant=one.tenant)
        for turn in range(DECISIONS):
            report_step(f"decision {turn + 1} of {DECISIONS} for each application")
            for one in fleet:
                expected = one.decide(policy)
                found = client.decide(SYSTEM, one.pods.state())
                one.compare(found, expected)
                one.pods.carry_out(found.decision)
                client.feedback(SYSTEM, one.pods.outcome(), id=found.id)
        before = kept_of(client, service, fleet)
        first = fleet[0].decide(policy)  # one more, just before the kill
        fleet[0].compare(client.decide(SYSTEM, fleet[0].pods.state()), first)
    time.sleep(SETTLE_S)
    report_step("kill all processes of the service")
    restart_s = kill_all(service, PATIENCE_S)
    with Client(service.url, deadline_s=PATIENCE_S, retries=1000) as client:
        after = kept_of(client, service, fleet)
        report_step("decision after the kill for each application")
        as_new = 0
        for one in fleet:
            expected = one.decide(policy)
            found = client.decide(SYSTEM, one.pods.state())
            one.compare(found, expected)
            as_new += any("is new" in note for note in found.reason.notes)
    pairs = list(zip(before[1:], after[1:], strict=True))  # the first one changed since
    decided = DECISIONS * len(fleet)
    lost = {
        "memory": sum(a.memory != b.memory or not b.memory for a, b in pairs),
        "lifecycle": sum((a.lifecycle, a.profile) != (b.lifecycle, b.profile) for a, b in pairs),
        "guard": sum(a.guard != b.guard for a, b in pairs),
    }
    for part, number in lost.items():
        yield Figure(f"{name}/kill/{part}_lost", float(number), "applications")
    yield Figure(f"{name}/kill/decided_as_new", float(as_new), "applications")
    guards = sum(bool(one.guard) for one in after)
    yield Figure(f"{name}/kill/with_guard_windows", float(guards), "applications")
    counted = sum(one.decisions for one in after)
    yield Figure(f"{name}/kill/counts_lost", 1 - counted / (decided + 1), "")
    yield Figure(f"{name}/kill/restart_s", restart_s, "s")
    differences = sum(len(one.differences) for one in fleet)
    yield Figure(f"{name}/parity_states", float(decided + 1 + len(fleet)), "states")
    yield Figure(f"{name}/parity_differences", float(differences), "states")


def kept_of(client: Client, service: BenchServer, fleet: Sequence[KnownApplication]) -> list[Kept]:
    """What the service keeps of the applications, over HTTP and on disk."""
    found = []
    statuses = [client.status(SYSTEM, tenant=one.tenant) for one in fleet]
    time.sleep(SETTLE_S)
    with closing(open_database(service)) as database:
        memories = dict(database.execute("select tenant, memory from memories"))
        rows = database.execute("select tenant, name, record from quantities order by tenant, name")
        guards: dict[str, list[tuple[str, str]]] = {}
        for tenant, quantity, record in rows:
            guards.setdefault(tenant, []).append((quantity, record))
    for one, status in zip(fleet, statuses, strict=True):
        lifecycle = status.lifecycle
        found.append(
            Kept(
                (lifecycle.state, lifecycle.since, lifecycle.why),
                lifecycle.profile,
                memories.get(one.tenant),
                tuple(guards.get(one.tenant, ())),
                status.decisions.total,
            )
        )
    return found


def open_database(service: BenchServer) -> sqlite3.Connection:
    """The tenants of the system, to read; the control process writes them."""
    file = service.settings.folder / f"{SYSTEM}.sqlite"
    return sqlite3.connect(f"file:{file}?mode=ro", uri=True)


def load_all(
    service: BenchServer,
    noop: str,
    fleet: Sequence[KnownApplication],
    name: str,
    report_step: Callable[[str], None],
    rounds: int = ROUNDS,
) -> Iterator[Figure]:
    """Load service and no-op in turn over one connection, each request for the next application.

    Processor time is that of all processes of the service, with what follows a response.
    """
    from loadmaster.platform.bench.service_processes import cpu_seconds, running_replicas

    pids = [pid for some in running_replicas().values() for pid in some]
    bodies, cpu_s, sent = [], 0.0, 0
    for number, one in enumerate(fleet):
        bodies.append(service.folder / f"known-{number}.json")
        bodies[-1].write_bytes(one.request())
    size = sum(body.stat().st_size for body in bodies) / len(bodies)
    reports: dict[str, list[dict[str, Any]]] = {noop: [], service.decide_url(SYSTEM): []}
    marker = f'"source":"{POLICY}"'
    for turn in range(rounds):
        report_step(f"round {turn + 1} of {rounds}")
        start = turn * len(bodies) // rounds
        posted = tuple(bodies[start:] + bodies[:start])
        for url, found in reports.items():
            load = Load(url, posted, 1, SECONDS, warmup_s=WARMUP_S, marker=marker)
            before = cpu_seconds(pids)
            report = measure_load(load)
            if url != noop:
                cpu_s, sent = cpu_s + cpu_seconds(pids) - before, sent + report["sent"]
            if report["failed"] or not report["requests"]:
                raise RuntimeError(f"{url} failed: {report['failed'] or 'no response'}")
            found.append(report)
    others, decided = reports.values()
    peer = f"no-op, same bodies of {size / 1000:.1f} kB"
    for column in ("p50_ms", "p99_ms"):
        value, base = (median(one[column] for one in some) for some in (decided, others))
        yield Figure(f"{name}/{column}", value, "ms", base, peer, higher_is_better=False)
    over = median(a["p50_ms"] - b["p50_ms"] for a, b in zip(decided, others, strict=True))
    yield Figure(f"{name}/over_noop_ms", over, "ms", GOAL_MS, "goal", higher_is_better=False)
    marked, requests = (sum(one[column] for one in decided) for column in ("marked", "requests"))
    yield Figure(f"{name}/by_policy", marked / requests, "")
    yield Figure(f"{name}/cpu_ms_each", 1000 * cpu_s / sent, "ms")
    yield Figure(f"{name}/requests", float(requests), "requests")


def disk_figures(service: BenchServer, count: int, name: str) -> Iterator[Figure]:
    """Size of the database, by its pages in use, and of all its files."""
    with closing(open_database(service)) as database:
        pages, free, size = (
            database.execute(f"pragma {part}").fetchone()[0]
            for part in ("page_count", "freelist_count", "page_size")
        )
        (known,) = database.execute("select count(*) from memories").fetchone()
    files = service.settings.folder.glob(f"{SYSTEM}.sqlite*")
    whole = sum(file.stat().st_size for file in files)
    yield _size(f"{name}/disk_kb_each", (pages - free) * size / count)
    yield Figure(f"{name}/disk_kb_each_with_log", whole / 1000 / count, "kB")
    yield Figure(f"{name}/with_memory", float(known), "applications")


def memory_figures(
    fleet: Sequence[KnownApplication], name: str, report_step: Callable[[str], None]
) -> Iterator[Figure]:
    """Memory of applications in a registry like the gateway's, in this process; after a day too."""
    report_step("memory of an application")
    some = fleet[: max(1, min(200, len(fleet)))]
    in_memory, _ = size_each([one.pods.name for one in some], DECISIONS)
    yield _size(f"{name}/memory_kb_each", in_memory)
    report_step("memory of an application after a day")
    in_memory, on_disk = size_each([one.pods.name for one in some[:DAY_APPLICATIONS]], DAY)
    yield _size(f"tenants/{SYSTEM}/day/memory_kb_each", in_memory)
    yield _size(f"tenants/{SYSTEM}/day/disk_kb_each", on_disk)


def _size(name: str, size: float) -> Figure:
    return Figure(name, size / 1000, "kB", GOAL_KB, "goal", higher_is_better=False)


def size_each(names: Sequence[str], decisions: int) -> tuple[float, float]:
    """Bytes of an application in memory and on disk after so many decisions with feedback."""
    policy = LocalPolicy()
    recorded = {name: list(_record_hour(name, decisions, policy)) for name in names}

    async def work(folder: Path) -> tuple[float, float]:
        decider = TenantDecider(SYSTEM, folder, TenantSettings())
        await decider.decide(DEFAULT_TENANT)

        async def decide_all() -> None:
            for name, steps in recorded.items():
                tenant = tenant_of(name)
                for raw, decided, outcome in islice(cycle(steps), decisions):
                    await decider.record(tenant, made := uuid.uuid4().hex, raw, decided)
                    await decider.feedback(tenant, made, outcome)
                await decider.flush()

        in_memory = await traced_bytes(decide_all)
        on_disk = await decider.stored_bytes(list(map(tenant_of, names)))
        await decider.close()
        return in_memory / len(names), on_disk / len(names)

    with tempfile.TemporaryDirectory(prefix="lm-tenants-") as folder:
        return asyncio.run(work(Path(folder)))


def _record_hour(
    name: str, steps: int, policy: LocalPolicy
) -> Iterator[tuple[bytes, Decided, AwareOutcome]]:
    """Requests, decisions and outcomes of an application, an hour of them at most."""
    steps = min(steps, HOUR)
    settings = PodScalingSettings(application=name, steps=steps)
    one = KnownApplication(PodClient(settings, build_setup(settings), 0), offline=False)
    for _ in range(steps):
        raw, decided = one.request(), one.decide(policy)
        one.pods.carry_out(decided.decision)
        yield raw, decided, one.pods.outcome()
