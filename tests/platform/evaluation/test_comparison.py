"""Who is compared, how their episodes run, and who is better."""

from __future__ import annotations

import json
import re
import threading
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from loadmaster.envs.errors import InputError
from loadmaster.envs.metrics import Metric
from loadmaster.platform.evaluation import run
from loadmaster.platform.evaluation.adapters import EvaluationSetup
from loadmaster.platform.evaluation.comparison import as_json
from loadmaster.platform.evaluation.formatting import among_learned, verdict
from tests.platform.evaluation.machine import (
    KNOWING,
    MACHINE,
    MachineDay,
    MachineSettings,
    compared,
    machine_day,
    many_variants,
    prepare,
    with_oracles,
)

# Whom to compare


@pytest.mark.parametrize(
    ("policies", "against", "chosen"),
    [
        ([], None, ("arrival", "shortest", "longest")),
        ([], "all", ("arrival", "shortest", "longest")),
        (["longest"], None, ("longest",)),
        (["longest"], "all", ("longest", "arrival", "shortest")),
        (["longest", "optimal"], "shortest", ("optimal", "longest", "shortest")),
        ([], "shortest, shortest", ("shortest",)),
    ],
)
def test_who_is_compared(policies: list[str], against: str | None, chosen: tuple[str, ...]) -> None:
    assert run.choose_policies(MACHINE, policies, against) == chosen


def test_the_optimum_is_no_baseline() -> None:
    with pytest.raises(InputError, match="unknown baseline 'optimal'"):
        run.choose_policies(MACHINE, [], "optimal")


# Running


def test_threads_change_nothing_but_the_time() -> None:
    trial, seeds = prepare(MachineSettings()), range(5, 12)
    alone, many = (
        run.run_episodes(trial, MACHINE.baselines, seeds, workers, lambda: None)
        for workers in (1, 4)
    )
    for policy in MACHINE.baselines:
        for place, seed in enumerate(seeds):
            expected = machine_day(policy, seed).completion_s
            assert np.array_equal(alone[policy][place].completion_s, expected)
            assert np.array_equal(many[policy][place].completion_s, expected)


def test_episodes_really_overlap() -> None:
    both_inside = threading.Barrier(2, timeout=10)
    warmed_up: list[int] = []

    def wait_for_the_other(policy: str, seed: int) -> MachineDay:
        if warmed_up:
            both_inside.wait()
        warmed_up.append(seed)
        return machine_day(policy, seed)

    trial = replace(prepare(MachineSettings()), run=wait_for_the_other)
    ticks: list[int] = []
    run.run_episodes(trial, ["arrival"], range(5), 2, lambda: ticks.append(1))
    assert len(ticks) == 5


def test_a_fault_stops_the_rest() -> None:
    started: list[int] = []

    def refuse(policy: str, seed: int) -> MachineDay:
        started.append(seed)
        raise InputError("too large")

    trial = replace(prepare(MachineSettings()), run=refuse)
    with pytest.raises(InputError, match="too large"):
        run.run_episodes(trial, ["arrival"], range(1000), 2, lambda: None)
    assert len(started) == 1


def test_warnings_become_one_note() -> None:
    heard: list[str] = []

    def warn() -> None:
        with run.warnings_heard() as lines:
            for job in (3, 4, 3):
                warnings.warn(f"job {job} is left out", stacklevel=1)
            warnings.warn("old", DeprecationWarning, stacklevel=1)
        heard.extend(lines)

    with pytest.warns(DeprecationWarning, match="old"):
        warn()
    assert heard == ["warning: job 3 is left out (and 1 more such warnings)"]


# The verdict


def mean_jct(policy: str, seed: int) -> float:
    return float(machine_day(policy, seed).completion_s.mean())


def test_comparison_by_hand() -> None:
    result = compared("arrival", "longest", "shortest", seeds=12)
    days = {p: [mean_jct(p, seed) for seed in range(12)] for p in result.policies}
    assert result.policies == ("shortest", "arrival", "longest")
    assert result.best_baseline == "shortest"
    for policy, means in days.items():
        assert result.summaries[policy][0].mean == pytest.approx(np.mean(means))
        assert result.summaries[policy][0].iqm == pytest.approx(np.mean(np.sort(means)[3:9]))
    difference = result.differences["longest"]
    gaps = np.subtract(days["longest"], days["shortest"])
    assert difference.mean == pytest.approx(gaps.mean())
    assert difference.percent == pytest.approx(100 * gaps.mean() / np.mean(days["shortest"]))
    assert difference.interval.low < gaps.mean() < difference.interval.high
    assert difference.interval.excludes_zero
    assert "shortest" not in result.differences


def test_all_policies_met_the_same_jobs() -> None:
    result = compared("arrival", "longest", "shortest")
    makespans = [values[1] for values in result.values.values()]
    assert np.array_equal(makespans[0], makespans[1])
    assert np.array_equal(makespans[0], makespans[2])


def test_gap_to_the_optimum() -> None:
    result = compared("optimal", "shortest", "arrival")
    assert result.best_baseline == "shortest"
    assert result.gaps["shortest"].mean == 0
    ratio = [
        machine_day("arrival", s).completion_s.mean()
        / machine_day("optimal", s).completion_s.mean()
        for s in range(20)
    ]
    assert result.gaps["arrival"].mean == pytest.approx(100 * (np.mean(ratio) - 1))
    assert "optimal" not in result.gaps
    assert as_json(result, [])["optimality_gap_percent"]["arrival"]["mean"] > 0
    assert verdict(result).startswith("shortest is best: mean JCT ")
    assert "0.0% [0.0%, 0.0%] from optimal, arrival is " in verdict(result)


def test_more_can_be_better() -> None:
    reward = Metric("reward", "reward", "", lambda day: -float(day.completion_s.mean()), "higher")

    def rewarded(settings: MachineSettings) -> EvaluationSetup:
        return replace(prepare(settings), metrics=(reward,))

    result = compared("arrival", "longest", "shortest", subject=replace(MACHINE, prepare=rewarded))
    assert result.policies == ("shortest", "arrival", "longest")
    assert result.best_baseline == "shortest"
    # Rewards are negative here: less of it is a difference below zero, in percent as well.
    assert result.differences["longest"].mean < 0
    assert result.differences["longest"].percent < 0
    assert re.search(r"arrival is \d+\.\d% behind \[\d", verdict(result))


def test_verdict_on_a_clear_lead() -> None:
    text = verdict(compared("arrival", "longest", "shortest"))
    assert re.fullmatch(
        r"shortest is best: mean JCT [\d.]+ s, arrival is [\d.]+% behind \[[\d.]+%, [\d.]+%\]\.",
        text,
    )


def test_verdict_on_a_tie() -> None:
    twins = replace(MACHINE, baselines=("shortest", "learned", "longest"))
    text = verdict(compared("shortest", "learned", "longest", seeds=3, subject=twins))
    assert "but 3 seeds do not tell it from " in text
    assert "longest" not in text


def test_verdict_on_a_newcomer() -> None:
    text = verdict(compared("learned", "arrival", "longest"))
    assert re.match(r"learned is best: .* ahead of arrival, the best baseline\.$", text)


def test_one_seed_promises_nothing() -> None:
    result = compared("arrival", "shortest", seeds=1)
    record = json.loads(json.dumps(as_json(result, []), allow_nan=False))
    assert record["policies"]["shortest"]["jct"]["ci95"] == [None, None]
    assert record["differences"]["arrival"]["excludes_zero"] is False
    assert verdict(result).endswith("One seed gives no interval; try --seeds 20.")


def test_a_line_for_the_best_of_each_kind() -> None:
    subject = many_variants(30)
    result = compared(*subject.baselines, subject=subject, seeds=2)
    assert result.representatives == ("shortest-1", "arrival-0", "longest-2")
    few = compared(*subject.baselines[:6], subject=subject, seeds=2)
    assert few.representatives == few.policies


# Oracles


def test_an_oracle_is_never_the_best_baseline() -> None:
    result = compared("arrival", "longest", "shortest", "learned", subject=KNOWING)
    assert result.policies[0] == "shortest"
    assert result.best_baseline == "arrival"
    assert result.differences["shortest"].percent < 0
    record = as_json(result, [])
    assert record["oracles"] == ["shortest"]
    text = verdict(result)
    assert re.match(r"learned is best: .* ahead of arrival, the best baseline\. The best ", text)
    assert re.search(
        r"The best oracle, shortest, is at mean JCT [\d.]+ s, .*ahead of arrival\.$", text
    )


def test_an_oracle_may_fall_behind() -> None:
    text = verdict(compared("arrival", "longest", subject=with_oracles("longest")))
    assert re.match(r"arrival: mean JCT [\d.]+ s\. The best oracle, longest, is at ", text)
    assert text.endswith(" behind arrival.")


def test_oracles_alone_have_nobody_to_be_measured_against() -> None:
    result = compared("shortest", subject=KNOWING)
    assert (result.best_baseline, result.differences) == (None, {})
    assert verdict(result).startswith("shortest is an oracle: mean JCT ")
    both = with_oracles("shortest", "longest")
    text = verdict(compared("shortest", "longest", subject=both))
    assert text.startswith("shortest is best of the oracles: mean JCT ")
    text = verdict(compared("shortest", "learned", subject=KNOWING))
    assert re.fullmatch(
        r"learned: mean JCT \S+ s\. The best oracle, shortest, is at \D+[\d.]+ s\.", text
    )


# Learned policies beside one another


def test_an_ablation_is_told_with_intervals() -> None:
    result = compared("learned", "arrival", "longest", seeds=6)
    assert among_learned(result) == []
    # Any two will do in the place of bundles.
    bundles: Any = dict.fromkeys(("longest", "learned"))
    result = replace(result, learned=bundles)
    (line,) = among_learned(result)
    told = re.fullmatch(
        r"learned beside longest: mean JCT (-\S+)% \[(-\S+), (-\S+)\], makespan \+0\.0% .*", line
    )
    assert told is not None
    ours, theirs = (result.values[policy][0] for policy in ("learned", "longest"))
    expected = 100 * (ours.mean() / theirs.mean() - 1)
    assert float(told[1]) == pytest.approx(expected, abs=0.05)
    assert float(told[2]) < expected < float(told[3])
    found = result.difference("learned", "longest", result.primary)
    assert found.percent == pytest.approx(expected)
