"""The printed table, sentences and notes."""

from __future__ import annotations

import re
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from loadmaster.platform.evaluation import report
from loadmaster.platform.evaluation.charts import draw_summary
from loadmaster.platform.evaluation.comparison import Comparison
from loadmaster.platform.evaluation.files import as_json
from tests.platform.evaluation.machine import MACHINE, compared, many_variants, with_oracles


def printed(result: Comparison, width: int, terminal: bool = False) -> str:
    stream = StringIO()
    console = Console(file=stream, width=width, force_terminal=terminal, highlight=False)
    report.print_report(result, console)
    return stream.getvalue()


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_table_fits(width: int) -> None:
    text = printed(compared("optimal", "arrival", "longest", "shortest"), width)
    lines = text.splitlines()
    table = lines[2 : lines.index("", 2)]
    assert all(len(line) <= width for line in table)
    assert not {"…", "\x1b"} & set(text)
    assert lines[0] == "steady: 8 jobs, one machine; seeds 0 to 19"
    rows = [line.split()[0] for line in table if re.match(r"[a-z]", line)]
    assert rows == ["policy", "optimal", "shortest", "arrival", "longest"]
    for heading in ("mean JCT, s", "IQM", "makespan", "95%", "against"):
        assert heading in "\n".join(table[:2])
    assert ("decisions" in text) == (width >= 120)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_long_table_has_one_line_a_policy(width: int) -> None:
    adapter = many_variants(30)
    result = compared(*adapter.baselines, adapter=adapter, seeds=4)
    lines = printed(result, width).splitlines()
    table = lines[2 : lines.index("", 2)]
    assert all(len(line) <= width for line in table)
    rows = [line.split()[0].rstrip("*") for line in table]
    assert rows[rows.index("policy") + 1 :] == list(result.policies)
    assert "do not tell it from arrival-3 (0.0% behind [0.0%, 0.0%]), arrival-6, " in lines[-3]
    assert "arrival-9 and 6 more. The best oracle, shortest-1, is at " in lines[-3]


def test_oracles_are_marked_in_the_table() -> None:
    marked = compared("arrival", "longest", "shortest", adapter=with_oracles("shortest"))
    lines = printed(marked, 200).splitlines()
    assert [line.split()[0] for line in lines[3:6]] == ["shortest*", "arrival", "longest"]
    assert "best baseline" in lines[4]
    assert any(line.startswith("* an oracle: ") for line in lines)
    plain = printed(compared("arrival", "longest", "shortest"), 200)
    assert [word for word in ("oracle", "*") if word in plain] == []


def test_terminal_gets_wrapped_sentences_and_styles() -> None:
    text = printed(compared("arrival", "longest", "shortest"), 60, terminal=True)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert plain != text
    assert all(len(line) <= 60 for line in plain.splitlines())


@pytest.mark.parametrize(("seeds", "note"), [(1, "one seed"), (4, "only 4 seeds"), (5, "")])
def test_few_seeds_are_flagged(seeds: int, note: str) -> None:
    result = compared("arrival", "shortest", seeds=seeds)
    assert as_json(result, [])["few_seeds"] == bool(note)
    shown = [line for line in report.notes(result) if "seed" in line]
    assert [line[: len(note)] for line in shown] == [note] * bool(note)
    assert set(shown) <= set(printed(result, 200).splitlines())
    _, subtitle = (text.get_text() for text in draw_summary(result).texts)
    assert subtitle.splitlines()[1:] == shown


SCORE, PERCENT, BEHIND = "mean JCT # s", "#% [#%, #%]", "arrival is #% behind [#%, #%]"
AHEAD = f"learned is best: {SCORE}, {PERCENT} ahead of arrival, the best baseline."
SHORTEST, LONGEST = (f"The best oracle, {name}, is at {SCORE}" for name in ("shortest", "longest"))
CONCLUSIONS = {  # on policies, of which those with a star are oracles; # is a number
    "arrival longest shortest": f"shortest is best: {SCORE}, {BEHIND}.",
    "learned arrival longest": AHEAD,
    "optimal shortest arrival": f"shortest is best: {SCORE}, {PERCENT} from optimal, {BEHIND}.",
    "arrival shortest* learned": f"{AHEAD} {SHORTEST}, {PERCENT} ahead of arrival.",
    "arrival longest*": f"arrival: {SCORE}. {LONGEST}, {PERCENT} behind arrival.",
    "shortest*": f"shortest is an oracle: {SCORE}.",
    "shortest* longest*": f"shortest is best of the oracles: {SCORE}.",
    "shortest* learned": f"learned: {SCORE}. {SHORTEST}.",
}


@pytest.mark.parametrize("policies", CONCLUSIONS)
def test_conclusion(policies: str) -> None:
    oracles = with_oracles(*re.findall(r"(\w+)\*", policies))
    result = compared(*policies.replace("*", "").split(), adapter=oracles)
    assert re.sub(r"\d+\.\d", "#", report.conclusion(result)) == CONCLUSIONS[policies]


def test_conclusion_on_a_tie_names_the_tied_policy() -> None:
    twins = replace(MACHINE, baselines=("shortest", "learned", "longest"))
    text = report.conclusion(compared("shortest", "learned", "longest", seeds=3, adapter=twins))
    assert "3 seeds do not tell it from learned" in text
    assert "longest" not in text


def test_learned_policies_are_compared_with_the_first() -> None:
    result = compared("learned", "arrival", "longest", seeds=6)
    assert report.learned_differences(result) == []
    bundles: Any = dict.fromkeys(("longest", "learned"))  # only the names matter
    (line,) = report.learned_differences(replace(result, learned=bundles))
    pattern = r"learned against longest: mean JCT (\S+)% \[(\S+), (\S+)\], makespan \+0\.0% .*"
    ((percent, low, high),) = re.findall(pattern, line)
    ours, theirs = (result.values[policy][0] for policy in ("learned", "longest"))
    expected = 100 * (ours.mean() / theirs.mean() - 1)
    assert float(percent) == pytest.approx(expected, abs=0.05)
    assert float(low) < expected < float(high) < 0
