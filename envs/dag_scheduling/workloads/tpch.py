"""Import of the published TPC-H stage profiles: 22 queries x 7 sizes, measured on Spark.

A folder `<size>g` holds adj_mat_<query>.npy (entry i, j is 1: stage i is a parent of j) and
task_duration_<query>.npy (by stage: first_wave, rest_wave and fresh_durations, each a list of task
durations in ms by the number of executors the job ran on).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.dag_scheduling.jobs import Job, Stage, Workload, build_workload
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.workloads.npy import PlainArray, read_npy
from loadmaster.envs.dag_scheduling.workloads.tpch_plans import stage_memory
from loadmaster.envs.errors import InputError
from loadmaster.envs.traces import trace_path

SIZES_GB = (2, 5, 10, 20, 50, 80, 100)
QUERIES = range(1, 23)
# The profiles have more levels: 2 executors, and the task count of small queries. Only these are
# drawn from; the others count in a stage's mean, as in the published simulator.
LEVELS = (5, 10, 20, 40, 50, 60, 80, 100)

Lists = dict[int, Sequence[int]]  # executors -> durations, ms


def load(settings: DagSchedulingSettings) -> Workload:
    path = trace_path(settings.workload, settings.data)
    for folder in (path / "tpch", path):
        if (folder / f"{SIZES_GB[0]}g").is_dir():
            return _load(folder)
    raise InputError(
        f"{path}: holds no TPC-H profiles; expected folders tpch/2g to tpch/100g in it"
    )


@lru_cache(maxsize=2)
def _load(folder: Path) -> Workload:
    jobs = [read_job(folder, size, query) for size in SIZES_GB for query in QUERIES]
    return build_workload("tpch", jobs)


def read_job(folder: Path, size_gb: int, query: int) -> Job:
    """Read one query at one size."""
    name = f"tpch-{size_gb}g-q{query}"
    adjacency = read_adjacency(folder / f"{size_gb}g" / f"adj_mat_{query}.npy")
    profiles = read_profiles(folder / f"{size_gb}g" / f"task_duration_{query}.npy")
    if len(profiles) != len(adjacency):
        raise InputError(
            f"{folder / f'{size_gb}g'}: query {query} has {len(profiles)} stage profiles; "
            f"expected {len(adjacency)}, one a row of its adjacency matrix"
        )
    return Job(
        name,
        tuple(
            _stage(name, number, np.flatnonzero(adjacency[:, number]), *profile)
            for number, profile in enumerate(profiles)
        ),
    )


def read_adjacency(path: Path) -> NDArray[Any]:
    """(stages, stages) Read the matrix with 1 at parent, child."""
    matrix = read_npy(path)
    shape = getattr(matrix, "shape", "no matrix")
    if not isinstance(matrix, np.ndarray) or matrix.ndim != 2 or shape[0] != shape[1]:
        raise InputError(f"{path}: adjacency of shape {shape}; expected a square matrix")
    if not np.isin(matrix, (0, 1)).all():
        raise InputError(f"{path}: adjacency with other entries than 0 and 1")
    return matrix


def read_profiles(path: Path) -> list[tuple[Lists, Lists, Lists]]:
    """Read by stage: first wave (with fresh executors' tasks), rest wave, fresh durations."""
    table = read_npy(path)
    if not isinstance(table, dict) or set(table) != set(range(len(table))):
        raise InputError(f"{path}: expected a dict of stage profiles numbered from 0")
    profiles = []
    for number in range(len(table)):
        first, rest, fresh = (
            _lists(path, number, table[number], wave)
            for wave in ("first_wave", "rest_wave", "fresh_durations")
        )
        if not first or not first.keys() == rest.keys() == fresh.keys():
            raise InputError(
                f"{path}: stage {number} was measured at {sorted(first)} executors in the first "
                f"wave, {sorted(rest)} in the rest, {sorted(fresh)} fresh; expected the same"
            )
        profiles.append((first, rest, fresh))
    return profiles


def _lists(path: Path, number: int, profile: Any, wave: str) -> Lists:
    found = profile.get(wave) if isinstance(profile, dict) else None
    if not isinstance(found, dict):
        raise InputError(f"{path}: stage {number} has no {wave}; expected durations by executors")
    lists: Lists = {}
    for executors, durations in found.items():
        plain = durations
        if isinstance(durations, PlainArray):
            plain = np.asarray(durations.items).tolist()
        # A set of types is faster than checking each of a million numbers.
        known = isinstance(plain, list) and set(map(type, plain)) <= {int, float}
        if not known or type(executors) is not int or executors < 1:
            raise InputError(f"{path}: stage {number}, {wave}: expected lists of durations in ms")
        lists[executors] = plain
    return lists


def _stage(
    job: str, number: int, parents: NDArray[np.intp], first: Lists, rest: Lists, fresh: Lists
) -> Stage:
    measured = next(iter(first))
    tasks = len(first[measured]) + len(rest[measured])
    clean = _without_fresh(first, fresh)
    everything = [ds for wave in (clean, rest, fresh) for ds in wave.values()]
    count = sum(map(len, everything))
    largest = max(first)
    served = {level: level if level in first else largest for level in LEVELS}
    return Stage(
        tasks,
        tuple(parents.tolist()),
        first={level: clean[key] for level, key in served.items()},
        rest={level: rest[key] for level, key in served.items()},
        fresh={level: fresh[key] for level, key in served.items()},
        memory=stage_memory(job, number),
        mean_ms=sum(map(sum, everything)) / count if count else None,
    )


def _without_fresh(first: Mapping[int, Sequence[int]], fresh: Lists) -> Lists:
    """Remove fresh executors' tasks from the first waves, which list them as well, each once.

    A level that has no others takes the next smaller level's list.
    """
    clean: Lists = {}
    smaller: Sequence[int] = []
    for executors in sorted(first):
        kept = first[executors]
        if len(fresh[executors]):
            kept = list((Counter(kept) - Counter(fresh[executors])).elements())
        if len(kept):
            smaller = kept
        clean[executors] = smaller
    return clean
