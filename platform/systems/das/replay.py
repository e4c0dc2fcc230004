"""The replay of GPU scheduling: machines over time, and decisions of a learned policy."""

import math
from collections.abc import Sequence
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.gpu_scheduling.baselines import BASELINES
from loadmaster.envs.gpu_scheduling.cluster import Cluster, build_cluster
from loadmaster.envs.gpu_scheduling.describe import describe_episode
from loadmaster.envs.gpu_scheduling.episode import PlacementTrace, run_episode
from loadmaster.envs.gpu_scheduling.jobs import WHOLE, Jobs, Workload, gpu_seconds
from loadmaster.envs.gpu_scheduling.metrics import utilisation
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.workloads import load_workload
from loadmaster.envs.metrics import mean_of_finished
from loadmaster.platform.replay.adapters import (
    DecisionButton,
    Packed,
    ScheduleAdapter,
    Unit,
    none_for_nan,
    pack,
    schedule_parts,
    unit_of,
)
from loadmaster.platform.systems.das import decision_trace
from loadmaster.platform.systems.das.decision_trace import RecordedEpisode
from loadmaster.platform.systems.das.evaluation import LearnedDas, oracles
from loadmaster.platform.systems.policies import LearnedPolicy


class Bars(NamedTuple):
    """Rectangles in order of machine and time."""

    machine: NDArray[np.int64]  # (B,)
    job: NDArray[np.int64]  # (B,)
    first: NDArray[np.int64]  # (B,) percent of a GPU, from the machine's first GPU
    height: NDArray[np.int64]  # (B,) percent
    start_s: NDArray[np.float64]  # (B,)
    end_s: NDArray[np.float64]  # (B,)


def assign_gpu_rows(trace: PlacementTrace, cluster: Cluster, jobs: Jobs) -> Bars:
    """Assign GPUs to the rows of a trace; rows without duration are left out.

    The simulator treats a machine's GPUs as one pool. A row takes units that are free for its whole
    duration: whole GPUs if it needs them, else part of the fullest GPU that fits, else pieces.
    """
    bars: list[tuple[int, int, int, int, float, float]] = []
    lasting = trace.end_s > trace.start_s
    # Of rows that start together, those with whole GPUs choose first.
    order = np.lexsort((-jobs.gpu[trace.job], trace.start_s, trace.machine))
    unit = math.gcd(WHOLE, *jobs.gpu[np.unique(trace.job)].tolist())
    until = np.zeros(0)  # (units,) when each is free again
    machine = -1
    for row in order[lasting[order]]:
        job, start_s, end_s = int(trace.job[row]), trace.start_s[row], trace.end_s[row]
        if trace.machine[row] != machine:
            machine = int(trace.machine[row])
            until = np.zeros(cluster.gpu_capacity[machine] // unit)
        taken = np.zeros(len(until), np.bool_)
        for _ in range(trace.instances[row]):
            taken |= _choose_units(
                (until <= start_s) & ~taken, int(jobs.gpu[job]) // unit, WHOLE // unit
            )
        until[taken] = end_s
        edges = np.flatnonzero(np.diff(np.concatenate([[False], taken, [False]])))
        for first, end in edges.reshape(-1, 2) * unit:
            bars.append((machine, job, int(first), int(end - first), start_s, end_s))
    table = np.array(bars, np.float64).reshape(-1, len(Bars._fields)).T
    machines, owners, firsts, heights = table[:4].astype(np.int64)
    return Bars(machines, owners, firsts, heights, *table[4:])


def _choose_units(free: NDArray[np.bool_], needed: int, whole: int) -> NDArray[np.bool_]:
    """Mask (U,) of free units for one instance; `whole` units are a GPU."""
    by_gpu = free.reshape(-1, whole)
    left = by_gpu.sum(1)
    chosen = np.zeros_like(by_gpu)
    if needed < whole:
        fitting = np.flatnonzero(left >= needed)
        if len(fitting):
            gpu = fitting[left[fitting].argmin()]
            chosen[gpu, np.flatnonzero(by_gpu[gpu])[:needed]] = True
            return chosen.ravel()
    chosen[np.flatnonzero(left == whole)[: needed // whole]] = True
    missing = needed - int(chosen.sum())
    if missing > 0:
        # Pieces, from the fullest GPUs first.
        others = np.flatnonzero((by_gpu & ~chosen).ravel())
        others = others[np.argsort(left[others // whole], kind="stable")]
        if len(others) < missing:
            raise ValueError("the trace places more on a machine than its GPUs")
        chosen.ravel()[others[:missing]] = True
    return chosen.ravel()


def pack_bars(bars: Bars, finish_s: NDArray[np.float64]) -> Packed:
    """Columns of the bars, decoded by `script/gpu_scheduling/schedule.js`."""
    start, end = (np.rint(times * 1000).astype(np.int64) for times in (bars.start_s, bars.end_s))
    same = np.concatenate([[False], bars.machine[1:] == bars.machine[:-1]])[: len(start)]
    before = np.where(same, np.concatenate([[0], start[:-1]])[: len(start)], 0)
    stopped = ~(bars.end_s >= finish_s[bars.job])  # also where finish_s is nan
    return {
        "bars": len(start),
        "machine": pack(bars.machine),
        "gap_ms": pack(start - before),  # since the start of the bar before on the same machine
        "duration_ms": pack(end - start),
        "job": pack(bars.job * 2 + stopped),  # + 1 if it is stopped at the end of the bar
        "first": pack(bars.first),
        "height": pack(bars.height),
    }


def run(
    policy: str,
    learned: LearnedPolicy | None,
    settings: GpuSchedulingSettings,
    seed: int,
    workload: Workload,
    recorded: bool,
) -> RecordedEpisode:
    """Run a baseline, or a learned policy, whose decisions are traced if it is DAS."""
    trace = None
    if isinstance(learned, LearnedDas):
        result, trace = decision_trace.trace_episode(learned, settings, seed, workload)
    elif learned is not None:
        result = learned.run(settings, seed, workload, record=True)
    else:
        result = run_episode(policy, settings, seed, workload, record=recorded)
    cluster, names = build_cluster(settings), tuple(settings.known_gpu_types)
    return RecordedEpisode(
        **{**vars(result), "policy": policy},
        cluster=cluster,
        gpu_names=tuple(names[kind] for kind in cluster.gpu_type),
        case=trace,
    )


def picture(episodes: Sequence[RecordedEpisode], title: str, file: IO[bytes], kind: str) -> None:
    from loadmaster.platform.systems.das.picture import draw_picture

    draw_picture(episodes, title, file, kind)


def opponents(settings: GpuSchedulingSettings) -> tuple[str, ...]:
    """Baselines that are no oracles."""
    return tuple(name for name in BASELINES if name not in oracles(settings))


def title(settings: GpuSchedulingSettings, seed: int, workload: Workload) -> str:
    described = describe_episode(settings, workload.size)
    return f"gpu_scheduling · {settings.workload} · {described} · seed {seed}"


def unit(episodes: Sequence[RecordedEpisode]) -> Unit:
    """Unit of the time axis."""
    return unit_of(max(each.end_s for each in episodes))


def figures(episode: RecordedEpisode) -> dict[str, float]:
    return {
        "jct": episode.mean_jct_s,
        "fee": mean_fee(episode),
        "makespan": episode.makespan_s,
        "preemptions": episode.preemptions,
    }


def cluster_data(episodes: Sequence[RecordedEpisode]) -> dict[str, Any]:
    cluster, names = episodes[0].cluster, episodes[0].gpu_names
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


def job_data(episode: RecordedEpisode, jobs: int) -> dict[str, Any]:
    drawn = episode.jobs
    return {
        "work_s": gpu_seconds(drawn)[:jobs].tolist(),
        "instances": drawn.instances[:jobs].tolist(),
        "gpu": drawn.gpu[:jobs].tolist(),
        "user": drawn.user[:jobs].tolist(),
    }


def policy_data(episode: RecordedEpisode, jobs: int) -> dict[str, Any]:
    assert episode.trace is not None
    bars = assign_gpu_rows(episode.trace, episode.cluster, episode.jobs)
    return {
        "mean_fee": none_for_nan(mean_fee(episode)),
        "fee": [round(fee, 4) for fee in episode.fee[:jobs].tolist()],
        "utilisation": none_for_nan(utilisation(episode)),
        "preemptions": episode.preemptions,
        "schedule": pack_bars(bars, episode.finish_s),
        "case": None if episode.case is None else decision_trace.trace_data(episode.case),
    }


def mean_fee(episode: RecordedEpisode) -> float:
    """Dollars per finished job."""
    return mean_of_finished(np.where(np.isnan(episode.finish_s), np.nan, episode.fee))


REPLAY = ScheduleAdapter(
    environment="gpu_scheduling",
    default_policies=("las-consolidate", "fifo-first-fit"),  # the best baseline, the simplest
    **schedule_parts("jobs in the queue"),
    decisions=DecisionButton("stop", "next stop »", "The next decision that stops a running job"),
    rows_are="stretches of jobs on machines",
    load=load_workload,
    run=run,
    opponents=opponents,
    cost=lambda settings, episode: episode.mean_jct_s,
    title=title,
    item_names=lambda workload, episode: tuple(map(str, episode.jobs.job_id)),
    rows=lambda episode: len(episode.trace.job),
    cluster_data=cluster_data,
    job_data=job_data,
    policy_data=policy_data,
    figures=figures,
    unit=unit,
    summary_suffix=lambda episode: f" for ${mean_fee(episode):,.2f}",
    picture=picture,
    most_rows=200_000,  # bars are painted one by one
)
