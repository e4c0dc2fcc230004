"""GPU scheduling as the replay shows it: machines by time, a learned policy's decisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.gpu_scheduling.baselines import BASELINES
from loadmaster.envs.gpu_scheduling.cluster import WHOLE, Cluster, build_cluster, type_names
from loadmaster.envs.gpu_scheduling.episode import EpisodeResult, run_episode
from loadmaster.envs.gpu_scheduling.jobs import Workload, gpu_seconds
from loadmaster.envs.gpu_scheduling.metrics import utilisation
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.wording import conditions
from loadmaster.envs.gpu_scheduling.workloads import load_workload
from loadmaster.envs.metrics import mean_of_finished
from loadmaster.platform.evaluation.gpu_scheduling import oracles
from loadmaster.platform.policies import LearnedPolicy
from loadmaster.platform.replay.case_study import CaseStudy, study
from loadmaster.platform.replay.decisions import case_data
from loadmaster.platform.replay.headline import Unit, mean_jct_s
from loadmaster.platform.replay.lanes import lay_out, pack_bars
from loadmaster.platform.replay.scenes import Scene

UNITS = (Unit(3600, "h"), Unit(60, "min"), Unit(1, "s"))
UNITS_SHOWN = 3  # of a unit at least, or a smaller one is taken


@dataclass(frozen=True)
class Watched:
    """An episode, the machines it ran on, and the decisions if somebody can tell them."""

    result: EpisodeResult
    cluster: Cluster
    gpu_names: tuple[str, ...]  # of each machine
    case: CaseStudy | None

    @property
    def policy(self) -> str:
        return self.result.policy

    @property
    def arrival_s(self) -> NDArray[np.float64]:
        return self.result.jobs.arrival_s

    @property
    def completion_s(self) -> NDArray[np.float64]:
        return self.result.finish_s

    @property
    def jct_s(self) -> NDArray[np.float64]:
        return self.result.jct_s

    @property
    def end_s(self) -> float:
        """Of the last arrival or completion."""
        return float(np.nanmax(np.concatenate([self.arrival_s, self.completion_s])))


def scene() -> Scene:
    return Scene(
        environment="gpu_scheduling",
        default_policies=("las-consolidate", "fifo-first-fit"),  # the best baseline, the simplest
        scripts=("schedule", "figures", "words", "machines", "decisions", "map", "steps"),
        sections=("decisions",),
        counted="jobs in the queue",
        rows_are="stretches of jobs on machines",
        load=load_workload,
        run=run,
        opponents=opponents,
        cost=lambda settings, watched: mean_jct_s(watched),
        title=title,
        job_names=lambda workload, watched: tuple(map(str, watched.result.jobs.job_id)),
        rows=lambda watched: (
            None if watched.result.trace is None else len(watched.result.trace.job)
        ),
        same_jobs=same_jobs,
        cluster_data=cluster_data,
        job_data=job_data,
        policy_data=policy_data,
        figures=figures,
        unit=unit,
        beside=lambda watched: f" for ${_mean_fee(watched.result):,.2f}",
        picture=picture,
        most_rows=200_000,  # bars are painted one by one
    )


def run(
    policy: str,
    learned: LearnedPolicy | None,
    settings: GpuSchedulingSettings,
    seed: int,
    workload: Workload,
    recorded: bool,
) -> Watched:
    case: CaseStudy | None = None
    if learned is None:
        result = run_episode(policy, settings, seed, workload, record=recorded)
    else:
        result, case = study(learned, settings, seed, workload)
    cluster, names = build_cluster(settings), type_names(settings)
    of_machine = tuple(names[kind] for kind in cluster.gpu_type)
    return Watched(replace(result, policy=policy), cluster, of_machine, case)


def picture(watched: Sequence[Watched], title: str, file: IO[bytes], kind: str) -> None:
    from loadmaster.platform.replay.picture import draw_picture  # most replays need no matplotlib

    draw_picture(watched, title, file, kind)


def opponents(settings: GpuSchedulingSettings) -> tuple[str, ...]:
    """Those that know no more than a scheduler can."""
    return tuple(name for name in BASELINES if name not in oracles(settings))


def title(settings: GpuSchedulingSettings, seed: int, workload: Workload) -> str:
    told = conditions(settings, workload.size)
    return f"gpu_scheduling · {settings.workload} · {told} · seed {seed}"


def same_jobs(one: Watched, other: Watched) -> bool:
    return np.array_equal(one.result.jobs.job_id, other.result.jobs.job_id)


def unit(watched: Sequence[Watched]) -> Unit:
    """Of the time axis."""
    end_s = max(each.end_s for each in watched)
    return next((each for each in UNITS if end_s >= UNITS_SHOWN * each.seconds), UNITS[-1])


def figures(watched: Watched) -> dict[str, float]:
    result = watched.result
    return {
        "jct": mean_jct_s(watched),
        "fee": _mean_fee(result),
        "makespan": result.makespan_s,
        "preemptions": result.preemptions,
    }


def cluster_data(watched: Sequence[Watched]) -> dict[str, Any]:
    cluster, names = watched[0].cluster, watched[0].gpu_names
    return {
        "machines": {
            "rack": cluster.rack.tolist(),
            "gpu": list(names),
            "gpus": (cluster.gpu_capacity / WHOLE).tolist(),
            "cores": (cluster.cpu_capacity / WHOLE).tolist(),
            "price": [round(price * 3600, 4) for price in cluster.price_per_s.tolist()],
            "speed": cluster.speed.tolist(),
        }
    }


def job_data(watched: Watched, jobs: int) -> dict[str, Any]:
    drawn = watched.result.jobs
    return {
        "work_s": gpu_seconds(drawn)[:jobs].tolist(),
        "instances": drawn.instances[:jobs].tolist(),
        "gpu": drawn.gpu[:jobs].tolist(),
        "user": drawn.user[:jobs].tolist(),
    }


def policy_data(watched: Watched, jobs: int) -> dict[str, Any]:
    result = watched.result
    assert result.trace is not None
    used = utilisation(result)
    return {
        "mean_fee": None if np.isnan(_mean_fee(result)) else _mean_fee(result),
        "fee": [round(fee, 4) for fee in result.fee[:jobs].tolist()],
        "utilisation": None if np.isnan(used) else used,
        "preemptions": result.preemptions,
        "schedule": pack_bars(lay_out(result.trace, watched.cluster, result.jobs), result.finish_s),
        "case": None if watched.case is None else case_data(watched.case),
    }


def _mean_fee(result: EpisodeResult) -> float:
    """Of finished jobs, in dollars."""
    return mean_of_finished(np.where(np.isnan(result.finish_s), np.nan, result.fee))
