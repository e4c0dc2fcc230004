"""Choose policies, seeds and settings, and run every policy on the same seeds."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from typing import Any

from loadmaster.envs.errors import InputError, unknown_name
from loadmaster.envs.settings import parse_assignments
from loadmaster.platform.evaluation.adapters import (
    EnvironmentAdapter,
    EvaluationSetup,
    Learned,
)

Episodes = Mapping[str, Sequence[Any]]  # policy -> one result per seed, in the seeds' order


def choose_settings(
    adapter: EnvironmentAdapter, assignments: Sequence[str] | None, workload: str | None
) -> Any:
    """Settings of the environment from --set and --workload."""
    return adapter.settings(given_values(assignments, workload))


def given_values(assignments: Sequence[str] | None, workload: str | None) -> dict[str, Any]:
    """Values of --set and --workload, which may both give the workload if they agree."""
    values = parse_assignments(list(assignments or ()))
    if workload is not None and values.setdefault("workload", workload) != workload:
        raise InputError(
            f"--workload {workload} and --set workload={values['workload']} disagree; "
            "expected one of the two"
        )
    return values


def choose_policies(
    adapter: EnvironmentAdapter, policies: Sequence[str], against: str | None
) -> tuple[str, ...]:
    """`policies` and the baselines named by `against`; all baselines if neither is given."""
    if against is None:
        rivals = () if policies else adapter.baselines
    elif against == "all":
        rivals = adapter.baselines
    else:
        rivals = tuple(name.strip() for name in against.split(","))
        for name in rivals:
            if name not in adapter.baselines:
                raise unknown_name("baseline", name, (*adapter.baselines, "all"))
    chosen = dict.fromkeys((*policies, *rivals))
    # The optimum runs first: an instance too large for it is rejected before anything else runs.
    return tuple(sorted(chosen, key=lambda name: name not in adapter.references))


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
    setup: EvaluationSetup,
    learned: Learned,
    policies: Sequence[str],
    seeds: Sequence[int],
    workers: int | None = None,
    on_episode: Callable[[], None] = lambda: None,
) -> Episodes:
    """Run every policy on every seed in threads: compiled episodes release the GIL.

    `on_episode` is called after each episode, from the calling thread.
    """
    networks = {name: bundle.policy for name, bundle in learned.items()}

    def run(policy: str, seed: int) -> Any:
        if policy in networks:
            return networks[policy].run(setup.settings, seed, setup.bank)
        return setup.run(policy, seed)

    episodes: dict[str, list[Any]] = {policy: [None] * len(seeds) for policy in policies}
    pending = [(policy, index) for index in range(len(seeds)) for policy in policies]
    # The first episode runs alone: it compiles, and invalid input fails before the rest starts.
    policy, index = pending.pop(0)
    episodes[policy][index] = run(policy, seeds[index])
    on_episode()
    with ThreadPoolExecutor(choose_workers(workers)) as threads:
        running = {threads.submit(run, p, seeds[i]): (p, i) for p, i in pending}
        try:
            for done in as_completed(running):
                policy, index = running[done]
                episodes[policy][index] = done.result()
                on_episode()
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise
    return episodes


@contextmanager
def collect_warnings() -> Iterator[list[str]]:
    """Turn user warnings raised inside into one note; the yielded list is filled on exit."""
    notes: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield notes
    texts = dict.fromkeys(str(each.message) for each in caught if each.category is UserWarning)
    for each in caught:
        if each.category is not UserWarning:
            warnings.showwarning(each.message, each.category, each.filename, each.lineno)
    if texts:
        more = f" (and {len(texts) - 1} more such warnings)" if len(texts) > 1 else ""
        notes.append(f"warning: {next(iter(texts))}{more}")
