"""The table and the sentences that are printed."""

from __future__ import annotations

import re
from io import StringIO

import pytest
from rich.console import Console

from loadmaster.platform.evaluation.comparison import Comparison
from loadmaster.platform.evaluation.report import print_report
from tests.platform.evaluation.machine import KNOWING, compared, many_variants


def printed(result: Comparison, width: int, terminal: bool = False) -> str:
    stream = StringIO()
    console = Console(file=stream, width=width, force_terminal=terminal, highlight=False)
    print_report(result, console)
    return stream.getvalue()


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_table_fits(width: int) -> None:
    text = printed(compared("optimal", "arrival", "longest", "shortest"), width)
    lines = text.splitlines()
    table = lines[2 : lines.index("", 2)]
    assert all(len(line) <= width for line in table)
    assert "…" not in text
    assert "\x1b" not in text
    assert lines[0] == "steady: 8 jobs, one machine; seeds 0 to 19"
    rows = [line.split()[0] for line in table if re.match(r"[a-z]", line)]
    assert rows == ["policy", "optimal", "shortest", "arrival", "longest"]
    for heading in ("mean JCT, s", "IQM", "makespan", "95%", "against"):
        assert heading in "\n".join(table[:2])
    assert ("decisions" in text) == (width >= 120)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_long_table_has_one_line_a_policy(width: int) -> None:
    subject = many_variants(30)
    result = compared(*subject.baselines, subject=subject, seeds=4)
    lines = printed(result, width).splitlines()
    table = lines[2 : lines.index("", 2)]
    assert all(len(line) <= width for line in table)
    rows = [line.split()[0].rstrip("*") for line in table]
    assert rows[rows.index("policy") + 1 :] == list(result.policies)
    assert "do not tell it from arrival-3 (0.0% behind [0.0%, 0.0%]), arrival-6, " in lines[-2]
    assert "arrival-9 and 6 more. The best oracle, shortest-1, is at " in lines[-2]


def test_oracles_are_marked_in_the_table() -> None:
    lines = printed(compared("arrival", "longest", "shortest", subject=KNOWING), 200).splitlines()
    assert [line.split()[0] for line in lines[3:6]] == ["shortest*", "arrival", "longest"]
    assert "best baseline" in lines[4]
    assert "* an oracle: it knows what no scheduler can, such as how long jobs will run" in lines
    plain = printed(compared("arrival", "longest", "shortest"), 200)
    assert "oracle" not in plain
    assert "*" not in plain


def test_terminal_gets_wrapped_sentences_and_styles() -> None:
    text = printed(compared("arrival", "longest", "shortest"), 60, terminal=True)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert plain != text
    assert all(len(line) <= 60 for line in plain.splitlines())
