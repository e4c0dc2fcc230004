"""Runs every policy on the same seeds, in threads: compiled episodes do not hold the lock."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from typing import Any

from loadmaster.envs.errors import InputError, unknown_name
from loadmaster.platform.evaluation.adapters import EnvironmentAdapter, EvaluationSetup

Episodes = dict[str, list[Any]]  # policy -> one result per seed, in the seeds' order


def choose_policies(
    subject: EnvironmentAdapter, policies: Sequence[str], against: str | None
) -> tuple[str, ...]:
    """Whom to compare: `policies` and the baselines named by `against`; with neither, all those."""
    if against is None:
        rivals = () if policies else subject.baselines
    elif against == "all":
        rivals = subject.baselines
    else:
        rivals = tuple(name.strip() for name in against.split(","))
        for name in rivals:
            if name not in subject.baselines:
                raise unknown_name("baseline", name, (*subject.baselines, "all"))
    chosen = dict.fromkeys((*policies, *rivals))
    # The optimum first: an instance too large for it is refused before anything else runs.
    return tuple(sorted(chosen, key=lambda name: name not in subject.references))


def choose_seeds(first: int, count: int) -> tuple[int, ...]:
    if count < 1:
        raise InputError(f"--seeds is {count}; expected 1 or more")
    if first < 0:
        raise InputError(f"--first-seed is {first}; expected 0 or more")
    return tuple(range(first, first + count))


def choose_workers(count: int | None) -> int:
    if count is not None and count < 1:
        raise InputError(f"--workers is {count}; expected 1 or more")
    return count or os.cpu_count() or 1


def run_episodes(
    trial: EvaluationSetup,
    policies: Sequence[str],
    seeds: Sequence[int],
    workers: int,
    on_episode: Callable[[], None],
) -> Episodes:
    """All episodes; `on_episode` is called after each, from this thread."""
    episodes: Episodes = {policy: [None] * len(seeds) for policy in policies}
    places = [(policy, place) for place in range(len(seeds)) for policy in policies]
    # One alone first: it compiles, and what cannot run at all is refused before the rest starts.
    policy, place = places.pop(0)
    episodes[policy][place] = trial.run(policy, seeds[place])
    on_episode()
    with ThreadPoolExecutor(workers) as threads:
        running = {threads.submit(trial.run, p, seeds[i]): (p, i) for p, i in places}
        try:
            for done in as_completed(running):
                policy, place = running[done]
                episodes[policy][place] = done.result()
                on_episode()
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise
    return episodes


@contextmanager
def warnings_heard() -> Iterator[list[str]]:
    """What environments warn of meanwhile, said once: lines for the notes, complete at the end."""
    lines: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield lines
    texts = dict.fromkeys(str(each.message) for each in caught if each.category is UserWarning)
    for each in caught:
        if each.category is not UserWarning:
            warnings.showwarning(each.message, each.category, each.filename, each.lineno)
    if texts:
        more = f" (and {len(texts) - 1} more such warnings)" if len(texts) > 1 else ""
        lines.append(f"warning: {next(iter(texts))}{more}")
