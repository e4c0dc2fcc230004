"""What the replay must know of an environment. The rest of it knows no environment."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, cast

from loadmaster.envs.errors import InputError
from loadmaster.platform.replay.headline import SECOND, Unit

SCENES = ("dag_scheduling", "gpu_scheduling")  # each has a module here of its own name
DAG_SCHEDULING = SCENES[0]


@dataclass(frozen=True)
class Scene:
    """An environment that can be watched.

    Its outcomes are the `Outcome` of headline.py and whatever the environment adds. The page takes
    its parts from `parts/ENVIRONMENT` and its script from `script/ENVIRONMENT`.
    """

    environment: str
    default_policies: tuple[str, str]  # the pair that tells the most at a glance
    scripts: tuple[str, ...]  # of the environment, in the order in which they are joined
    sections: tuple[str, ...]  # parts of the page below the charts that no other replay has
    counted: str  # which jobs the chart below the schedules counts
    rows_are: str  # what a schedule is made of, in the plural

    load: Callable[[Any], Any]  # settings -> the workload
    # name, the learned policy behind it if there is one, settings, seed, workload, recorded
    run: Callable[[str, Any, Any, int, Any, bool], Any]  # -> an outcome
    opponents: Callable[[Any], Sequence[str]]  # settings -> baselines, the best of them to be shown
    cost: Callable[[Any, Any], float]  # settings, outcome -> what the best one has least of
    title: Callable[[Any, int, Any], str]  # settings, seed, workload -> the episode in words
    job_names: Callable[[Any, Any], tuple[str, ...]]  # workload, outcome

    rows: Callable[[Any], int | None]  # of an outcome's schedule; None: it was not recorded
    same_jobs: Callable[[Any, Any], bool]  # two outcomes
    cluster_data: Callable[[Sequence[Any]], dict[str, Any]]  # what all policies share
    job_data: Callable[[Any, int], dict[str, Any]]  # outcome, how many jobs -> columns
    policy_data: Callable[[Any, int], dict[str, Any]]
    figures: Callable[[Any], Mapping[str, float]]  # for scripts: a name and a number
    unit: Callable[[Sequence[Any]], Unit] = lambda outcomes: SECOND
    beside: Callable[[Any], str] = lambda outcome: ""  # in the headline, after its mean JCT
    # outcomes, title, file, kind: draws decisions of a learned policy; None where nothing can
    picture: Callable[[Sequence[Any], str, IO[bytes], str], None] | None = None
    most_rows: int | None = None  # where the page can paint fewer than most pages can


def find_scene(environment: str) -> Scene:
    if environment not in SCENES:
        raise InputError(f"{environment} has no replay; expected {' or '.join(SCENES)}")
    module = importlib.import_module(f"loadmaster.platform.replay.{environment}")
    return cast(Scene, module.scene())
