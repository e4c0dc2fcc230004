"""The endpoint `aware` with 1,000 known applications: latency, size of each, and a kill of all.

The applications are those of the simulator, and carry out what the service decides. Each one is
known when it got DECISIONS decisions and reported their outcomes. Then every process of the service
is killed at once. Afterwards decisions over HTTP must be those of a policy in this process, which
remembers the applications by itself. No-op requests have the same bodies as those of the service.
"""

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from loadmaster.envs.errors import InputError
from loadmaster.envs.pod_scaling.application_files import load_applications
from loadmaster.envs.pod_scaling.applications import TEST, TRAIN, Application
from loadmaster.envs.pod_scaling.episode import build_setup
from loadmaster.envs.pod_scaling.settings import PodScalingSettings
from loadmaster.platform.bench.application_sizes import memory_figures, size_figure
from loadmaster.platform.bench.bench_server import NOOP, BenchServer, bench_server
from loadmaster.platform.bench.expected_decisions import KnownApplication, LocalPolicy
from loadmaster.platform.bench.http_load import Load
from loadmaster.platform.bench.http_load import measure as measure_load
from loadmaster.platform.bench.measurements import Figure
from loadmaster.platform.bench.pod_client import SYSTEM, PodClient
from loadmaster.platform.ray.head import HERE, free_ports
from loadmaster.serving.client import Client
from loadmaster.serving.decisions.request import POLICY

APPLICATIONS = 1000
STEPS = 15  # with one plan, before the first decision
DECISIONS = 2  # of each application, before the kill
OFFLINE_EVERY = 50  # one application in so many has a profile that lets the rule act
ROUNDS, SECONDS, WARMUP_S = 5, 3.0, 0.3
SETTLE_S = 0.2  # from the last response to the kill; the service writes changes every 50 ms
PATIENCE_S = 120.0
GOAL_MS = 3.0
_PLAN = np.array([0.0, 0.0, 0.1], np.float32)  # the action before the first decision


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
    known = load_applications(TRAIN, None) + load_applications(TEST, None)
    if count > len(known):
        raise InputError(f"--applications is {count:,}; expected at most {len(known):,}")
    report_step(f"simulate {count:,} applications")
    simulated = simulate(known[:count])
    with bench_server({SYSTEM: {}}, report_step) as service:
        from loadmaster.platform.bench.noop import start_noops

        noop = start_noops(HERE, free_ports(1)[0])[NOOP]
        figures = [*survive_kill(service, simulated, name, report_step)]
        figures += load_all(service, noop, simulated, name, report_step)
        figures += disk_figures(service, count, name)
    return [
        *figures,
        *memory_figures([one.pods.name for one in simulated], DECISIONS, name, report_step),
    ]


def simulate(applications: Sequence[Application]) -> list[KnownApplication]:
    """Applications that are some control steps into an episode."""
    settings, simulated = PodScalingSettings(steps=STEPS + DECISIONS + 2), []
    setup = build_setup(settings)
    for number, application in enumerate(applications):
        pods = PodClient(settings, setup._replace(applications=(application,)), number)
        for _ in range(STEPS):
            pods.runner.decide(_PLAN)
        simulated.append(KnownApplication(pods, offline=number % OFFLINE_EVERY == 0))
    return simulated


def survive_kill(
    service: BenchServer,
    simulated: Sequence[KnownApplication],
    name: str,
    report_step: Callable[[str], None],
) -> Iterator[Figure]:
    """Make all applications known, kill the service, and compare what it knows afterwards."""
    from loadmaster.platform.bench.kills import kill_all

    with Client(service.url, deadline_s=10.0) as client:
        policy = LocalPolicy()
        for one in simulated:
            if one.offline:
                client.profile(SYSTEM, {"bootstrap": True}, tenant=one.tenant)
        for turn in range(DECISIONS):
            report_step(f"decision {turn + 1} of {DECISIONS} for each application")
            for one in simulated:
                expected = one.decide(policy)
                found = client.decide(SYSTEM, one.pods.state())
                one.compare(found, expected)
                one.pods.carry_out(found.decision)
                client.feedback(SYSTEM, one.pods.outcome(), id=found.id)
        before = kept_of(client, service, simulated)
        first = simulated[0].decide(policy)  # one more, just before the kill
        simulated[0].compare(client.decide(SYSTEM, simulated[0].pods.state()), first)
    time.sleep(SETTLE_S)
    report_step("kill all processes of the service")
    restart_s = kill_all(service, PATIENCE_S)
    with Client(service.url, deadline_s=PATIENCE_S, retries=1000) as client:
        after = kept_of(client, service, simulated)
        report_step("decision after the kill for each application")
        as_new = 0
        for one in simulated:
            expected = one.decide(policy)
            found = client.decide(SYSTEM, one.pods.state())
            one.compare(found, expected)
            as_new += any("is new" in note for note in found.reason.notes)
    pairs = list(zip(before[1:], after[1:], strict=True))  # the first one changed since
    decided = DECISIONS * len(simulated)
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
    differences = sum(len(one.differences) for one in simulated)
    yield Figure(f"{name}/parity_states", float(decided + 1 + len(simulated)), "states")
    yield Figure(f"{name}/parity_differences", float(differences), "states")


def kept_of(
    client: Client, service: BenchServer, simulated: Sequence[KnownApplication]
) -> list[Kept]:
    """What the service keeps of the applications, over HTTP and on disk."""
    found = []
    statuses = [client.status(SYSTEM, tenant=one.tenant) for one in simulated]
    time.sleep(SETTLE_S)
    with closing(open_database(service)) as database:
        memories = dict(database.execute("select tenant, memory from memories"))
        rows = database.execute("select tenant, name, record from quantities order by tenant, name")
        guards: dict[str, list[tuple[str, str]]] = {}
        for tenant, quantity, record in rows:
            guards.setdefault(tenant, []).append((quantity, record))
    for one, status in zip(simulated, statuses, strict=True):
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
    simulated: Sequence[KnownApplication],
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
    for number, one in enumerate(simulated):
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
    yield size_figure(f"{name}/disk_kb_each", (pages - free) * size / count)
    yield Figure(f"{name}/disk_kb_each_with_log", whole / 1000 / count, "kB")
    yield Figure(f"{name}/with_memory", float(known), "applications")
