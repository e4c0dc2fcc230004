"""Mean completion times of a rule, Decima, and searches around both, above a lower bound.

All run the same job sequences, so differences are paired. `search` draws the futures of its
rollouts from what a scheduler can know; that with `-means` knows the mean duration of a stage
alone, as states of the service have it. `foresight` plays the true future, as no scheduler can, and
is no optimum: a better schedule may exist. Both play by the rule, those with `-decima` by Decima.
No schedule is below `bound`.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled
from loadmaster.envs.dag_scheduling import players
from loadmaster.envs.dag_scheduling.calibration import tuned_baseline
from loadmaster.envs.dag_scheduling.episode import run_episode
from loadmaster.envs.dag_scheduling.lookahead import Lookahead, check_searchable, run_lookahead
from loadmaster.envs.dag_scheduling.lower_bound import jct_bounds
from loadmaster.envs.dag_scheduling.observation import Observation
from loadmaster.envs.dag_scheduling.players import PlayerFor, register_player
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.state import SimState
from loadmaster.envs.dag_scheduling.workloads import load_workload
from loadmaster.envs.registry import find_system
from loadmaster.models.decima.compiled import Scratch, decide, scratch_for
from loadmaster.models.decima.policy import DecimaPolicy
from loadmaster.models.decima.weights import Weights
from loadmaster.platform.bench.foresight import ForesightEffort
from loadmaster.platform.bench.measurements import Figure, write_tables
from loadmaster.platform.evaluation.adapters import choose_seeds, choose_workers, given_values
from loadmaster.platform.evaluation.statistics import paired_difference
from loadmaster.platform.systems.bundle_ref import best_pretrained
from loadmaster.platform.systems.decima.evaluation import EVALUATION, LearnedDecima

FILES = TABLE, DIFFERENCES = "sequences.csv", "differences.csv"
RULE, POLICY, SEARCH, FORESIGHT, BOUND = "srpt-caps", "decima", "search", "foresight", "bound"
POLICY_SEARCH, POLICY_FORESIGHT = "search-decima", "foresight-decima"
MEANS_SEARCH = "search-decima-means"
SEARCHES = (SEARCH, FORESIGHT, POLICY_SEARCH, MEANS_SEARCH, POLICY_FORESIGHT)
COMPARED = (  # contender, reference
    *((name, RULE) for name in (POLICY, *SEARCHES, BOUND)),
    *((name, POLICY) for name in (*SEARCHES, BOUND)),
    (BOUND, POLICY_FORESIGHT),
)

Runner = Callable[[int], float]  # seed -> mean completion time, s


def measure(
    report_step: Callable[[str], None], effort: ForesightEffort, folder: Path | None
) -> Iterator[Figure]:
    settings = EVALUATION.settings(given_values(effort.assignments, None))
    check_searchable(settings)
    seeds = choose_seeds(effort.first_seed, effort.seeds)
    runners = contenders(settings, effort)
    records = run_all(runners, seeds, choose_workers(effort.workers), report_step)
    costs = {name: np.array([record[f"{name}_jct_s"] for record in records]) for name in runners}
    differences = list(compared(costs))
    if folder is not None:
        write_tables(folder, {TABLE: records, DIFFERENCES: differences})
    prefix = "decima/foresight"
    for name, values in costs.items():
        yield Figure(f"{prefix}/{name}/jct_s", float(values.mean()), "s", higher_is_better=False)
    for record in differences:
        name = f"{prefix}/{record['policy']}_to_{record['reference']}"
        for part in ("percent", "percent_low", "percent_high"):
            yield Figure(f"{name}/{part}", record[part], "%", higher_is_better=False)
    for name in SEARCHES:
        spent = float(np.mean([record[f"{name}_cpu_s"] for record in records]))
        yield Figure(f"{prefix}/{name}/cpu_s_an_episode", spent, "s", higher_is_better=False)


def contenders(settings: DagSchedulingSettings, effort: ForesightEffort) -> dict[str, Runner]:
    """Functions from a seed to the mean completion time, by name."""
    workload = load_workload(settings)
    rule = tuned_baseline(RULE, settings, workload)
    policy = best_pretrained(find_system("decima"), settings).policy
    assert isinstance(policy, LearnedDecima)

    def searched(player: PlayerFor, foresight: bool, only_means: bool = False) -> Runner:
        search = Lookahead(player, foresight, effort.options, effort.futures, only_means=only_means)
        return lambda seed: run_lookahead(settings, workload, seed, search).mean_jct_s

    return {
        RULE: lambda seed: run_episode(RULE, settings, seed, workload).mean_jct_s,
        POLICY: lambda seed: policy.run(settings, seed, workload).mean_jct_s,
        SEARCH: searched(players.player_of(rule), foresight=False),
        FORESIGHT: searched(players.player_of(rule), foresight=True),
        POLICY_SEARCH: searched(_player_of(policy), foresight=False),
        MEANS_SEARCH: searched(_player_of(policy), foresight=False, only_means=True),
        POLICY_FORESIGHT: searched(_player_of(policy), foresight=True),
        BOUND: lambda seed: jct_bounds(settings, workload, seed).best,
    }


class PolicyTables(NamedTuple):
    """What `act` plays by."""

    weights: Weights
    scratch: Scratch


@compiled
def act_by_network(
    player: PolicyTables, view: Observation, seed: int, count: int
) -> tuple[int, int]:
    """Take the best-scored stage and limit."""
    row, limit, _ = decide(view, player.weights, player.scratch, -1.0, -1.0)
    return row, limit


register_player(PolicyTables, act_by_network)


def _player_of(policy: DecimaPolicy) -> PlayerFor:
    """Play by the policy's best decisions."""

    def tables(state: SimState) -> PolicyTables:
        sizes = len(state.stages), len(state.jobs), len(state.executors)
        return PolicyTables(policy.weights, scratch_for(policy.network, *sizes))

    return tables


def run_all(
    runners: Mapping[str, Runner],
    seeds: tuple[int, ...],
    workers: int,
    report_step: Callable[[str], None],
) -> list[dict[str, Any]]:
    """One record a sequence: mean completion times and CPU seconds of every contender."""

    def run_sequence(seed: int) -> dict[str, Any]:
        record: dict[str, Any] = {"seed": seed}
        for name, run in runners.items():
            began = time.thread_time()
            record[f"{name}_jct_s"] = run(seed)
            record[f"{name}_cpu_s"] = time.thread_time() - began
        found = ", ".join(f"{name} {record[f'{name}_jct_s']:.2f} s" for name in runners)
        report_step(f"sequence {seed}: {found}")
        return record

    first = run_sequence(seeds[0])  # alone: it compiles
    with ThreadPoolExecutor(workers) as threads:
        return [first, *threads.map(run_sequence, seeds[1:])]


def compared(costs: Mapping[str, NDArray[np.float64]]) -> Iterator[dict[str, Any]]:
    """Paired differences in percent of the reference, with 95% intervals."""
    for name, reference in COMPARED:
        found = paired_difference(costs[name], costs[reference])
        yield {
            "policy": name,
            "reference": reference,
            "sequences": len(costs[name]),
            "seconds": found.mean,
            "percent": found.percent,
            "percent_low": found.percent_interval.low,
            "percent_high": found.percent_interval.high,
        }
