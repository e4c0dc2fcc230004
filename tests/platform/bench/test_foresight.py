"""The benchmark of limits: its figures and tables agree, and contenders are in order."""

from pathlib import Path

import pandas as pd
import pytest

from loadmaster.platform.systems.decima.foresight_bench import (
    BOUND,
    COMPARED,
    DIFFERENCES,
    FORESIGHT,
    POLICY,
    POLICY_FORESIGHT,
    RULE,
    SEARCHES,
    TABLE,
)
from tests.platform.cli.one_line import Cli

TINY = "--set workload=toy --set jobs=3 --set executors=2 --seeds 3 --first-seed 11 --futures 2"


def test_figures_follow_the_table(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "found"
    cli = Cli(capfd)
    results = cli.json(f"bench foresight decima {TINY} --options 2 --output {folder}")["results"]
    found = {each["name"].removeprefix("decima/foresight/"): each["value"] for each in results}
    table, differences = pd.read_csv(folder / TABLE), pd.read_csv(folder / DIFFERENCES)
    assert table["seed"].tolist() == [11, 12, 13]
    for name in (RULE, POLICY, *SEARCHES, BOUND):
        assert found[f"{name}/jct_s"] == pytest.approx(table[f"{name}_jct_s"].mean(), abs=1e-4)
    assert (table[f"{FORESIGHT}_jct_s"] <= table[f"{RULE}_jct_s"] + 1e-4).all()
    assert (table[f"{POLICY_FORESIGHT}_jct_s"] <= table[f"{POLICY}_jct_s"] + 1e-4).all()
    for name in (RULE, POLICY, *SEARCHES):
        assert (table[f"{BOUND}_jct_s"] <= table[f"{name}_jct_s"] + 1e-4).all()
    assert list(zip(differences.policy, differences.reference, strict=True)) == list(COMPARED)
    for row in differences.itertuples():
        gain = 100 * (found[f"{row.policy}/jct_s"] / found[f"{row.reference}/jct_s"] - 1)
        assert found[f"{row.policy}_to_{row.reference}/percent"] == pytest.approx(gain)
        assert row.percent_low <= row.percent <= row.percent_high
    assert all(found[f"{name}/cpu_s_an_episode"] > 0 for name in SEARCHES)
