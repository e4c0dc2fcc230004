"""Metrics of a pod scaling episode."""

from loadmaster.envs.metrics import Metric
from loadmaster.envs.pod_scaling.episode import EpisodeResult
from loadmaster.envs.pod_scaling.settings import STEP_S

_HOURS = STEP_S / 3600  # of a control step
_MIB_PER_GIB = 1024


def violated_steps(result: EpisodeResult) -> float:
    """Share of the control steps whose p99 is above the SLO, in percent."""
    return 100 * float((result.p99_s > result.slo_s).mean())


def violated_requests(result: EpisodeResult) -> float:
    """Share of the requests above the SLO, with those that timed out or were lost, in percent."""
    arrived = float(result.arrived.sum())
    return min(100 * float(result.violated.sum()) / arrived, 100.0) if arrived else float("nan")


EPISODE_METRICS = (
    Metric("reward", "reward", "", lambda result: result.reward, better="higher", relative=False),
    Metric("violations", "violations", "% of steps", violated_steps),
    Metric("violated_requests", "late requests", "%", violated_requests),
    Metric("p99_mean", "mean p99", "s", lambda result: float(result.p99_s.mean())),
    Metric("p99_max", "highest p99", "s", lambda result: float(result.p99_s.max())),
    Metric(
        "cpu_use", "CPU use", "%", lambda result: 100 * float(result.cpu_use.mean()),
        better="higher",
    ),
    Metric(
        "memory_use", "memory use", "%", lambda result: 100 * float(result.memory_use.mean()),
        better="higher",
    ),
    Metric(
        "replica_hours", "replica-hours", "", lambda result: _HOURS * float(result.replicas.sum())
    ),
    Metric("core_hours", "core-hours", "", lambda result: _HOURS * float(result.cores.sum())),
    Metric(
        "gib_hours", "GiB-hours", "", lambda result: _HOURS * float(result.mib.sum()) / _MIB_PER_GIB
    ),
    Metric("restarts", "restarts", "", lambda result: float(result.restarts.sum())),
    Metric("ooms", "OOMs", "", lambda result: float(result.ooms.sum())),
    Metric("timeouts", "timeouts", "", lambda result: float(result.timed_out.sum())),
    Metric("lost", "lost requests", "", lambda result: float(result.lost.sum())),
)  # fmt: skip
