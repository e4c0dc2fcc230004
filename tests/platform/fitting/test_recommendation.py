"""A learned policy is recommended only if its paired interval is ahead of the best rule."""

from dataclasses import replace
from typing import Any

import numpy as np

from loadmaster.platform.evaluation.comparison import Comparison
from loadmaster.platform.fitting.recommendation import (
    headings,
    markdown,
    recommend,
    short_list,
    table_rows,
)
from tests.platform.evaluation.machine import compared

RULES = ("arrival", "shortest", "longest")


def with_learned(shipped: float, fitted: float, noise: float = 0.01) -> Comparison:
    """Two learned policies at these multiples of the best rule, with noise by seed."""
    found = compared(*RULES)
    rng = np.random.default_rng(0)
    best = found.values["shortest"]
    values, summaries = dict(found.values), dict(found.summaries)
    for name, factor in (("shipped", shipped), ("fitted", fitted)):
        factors = factor + noise * rng.standard_normal(best.shape[1])
        values[name] = best * factors
        summaries[name] = found.summaries["shortest"]
    learned: Any = {"shipped": None, "fitted": None}
    setup = replace(found.setup, parameters={"shortest": "alpha 2"})
    return replace(found, values=values, summaries=summaries, learned=learned, setup=setup)


def test_fitted_policy_that_is_ahead_is_recommended() -> None:
    found = recommend(with_learned(1.0, 0.9), "shipped", "fitted")
    assert (found.policy, found.kind, found.parameters) == ("fitted", "fitted", "")
    assert "-10." in found.reason or "-9." in found.reason


def test_rule_is_recommended_unless_the_interval_excludes_it() -> None:
    for shipped, fitted, noise in ((1.0, 1.05, 0.01), (1.02, 0.99, 0.3)):
        found = recommend(with_learned(shipped, fitted, noise), "shipped", "fitted")
        assert (found.policy, found.kind, found.parameters) == ("shortest", "rule", "alpha 2")
        assert found.sentence.startswith("Use shortest (alpha 2): no learned policy")


def test_shipped_policy_is_recommended_if_fine_tuning_made_it_worse() -> None:
    assert recommend(with_learned(0.8, 0.9), "shipped", "fitted").kind == "shipped"
    assert recommend(with_learned(0.8, 1.1), "shipped", "fitted").kind == "shipped"
    assert recommend(with_learned(0.9, 0.9), "shipped", "fitted").kind == "fitted"


def test_one_seed_recommends_a_rule() -> None:
    found = with_learned(0.5, 0.5)
    single = replace(found, values={name: row[:, :1] for name, row in found.values.items()})
    assert recommend(single, "shipped", "fitted").kind == "rule"


def test_report_has_every_policy_and_the_recommendation() -> None:
    found = with_learned(1.0, 0.9)
    advised = recommend(found, "shipped", "fitted")
    text = markdown(found, advised, {"Trace": "x.csv"})
    assert advised.sentence in text
    assert "- Trace: x.csv" in text
    for policy in found.policies:
        assert f"\n| {policy} | " in text
    assert len(headings(found)) == len(table_rows(found, ("fitted",))[0])
    assert set(short_list(found)) == {*RULES, "shipped", "fitted"}
