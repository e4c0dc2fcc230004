"""Memory and disk that an application takes in a gateway: after some decisions, and after a day."""

import asyncio
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path

from loadmaster.envs.pod_scaling.episode import build_setup
from loadmaster.envs.pod_scaling.settings import PodScalingSettings
from loadmaster.platform.bench.expected_decisions import KnownApplication, LocalPolicy
from loadmaster.platform.bench.measurements import Figure
from loadmaster.platform.bench.pod_client import SYSTEM, PodClient
from loadmaster.platform.bench.tenant_decider import TenantDecider, traced_bytes
from loadmaster.serving.decisions.request import Decided
from loadmaster.serving.decisions.tenant_names import DEFAULT_TENANT, TenantSettings, tenant_of
from loadmaster.serving.systems.aware.schema import AwareOutcome

HOUR, DAY = 60, 1440  # control steps
SOME, DAY_APPLICATIONS = 200, 3
GOAL_KB = 32.0


def size_figure(name: str, size: float) -> Figure:
    return Figure(name, size / 1000, "kB", GOAL_KB, "goal", higher_is_better=False)


def memory_figures(
    applications: Sequence[str], decisions: int, name: str, report_step: Callable[[str], None]
) -> Iterator[Figure]:
    """Memory of applications in a registry like the gateway's, in this process; after a day too."""
    report_step("memory of an application")
    in_memory, _ = size_each(applications[:SOME], decisions)
    yield size_figure(f"{name}/memory_kb_each", in_memory)
    report_step("memory of an application after a day")
    in_memory, on_disk = size_each(applications[:DAY_APPLICATIONS], DAY)
    yield size_figure(f"tenants/{SYSTEM}/day/memory_kb_each", in_memory)
    yield size_figure(f"tenants/{SYSTEM}/day/disk_kb_each", on_disk)


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
