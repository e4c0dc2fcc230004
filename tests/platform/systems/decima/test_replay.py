"""The replay page as text, and its command; tests/e2e opens it in a browser."""

import base64
import dataclasses
import hashlib
import html
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadmaster.envs.dag_scheduling.episode import EpisodeResult, ScheduleTrace, run_episode
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.platform.replay import page
from loadmaster.platform.replay.adapters import pack, pack_schedule, summary_line, unfinished_note
from loadmaster.platform.replay.page import build_page
from tests.platform.cli.one_line import Cli

# executor, job, stage, start ms, end ms, moving: two executors, two jobs
ROWS = [
    (0, 0, 0, 0, 1000, 0),
    (0, 0, 0, 1000, 2500, 0),
    (0, 0, 1, 3000, 4000, 0),
    (1, 1, 0, 0, 2000, 1),
    (1, 1, 0, 2000, 20000, 0),
]


def schedule(rows: list[tuple[int, ...]]) -> ScheduleTrace:
    """Of columns in the order of ROWS."""
    return ScheduleTrace(*np.array(rows, np.int64).T)


def episode(policy: str = "fair", completion_s: tuple[float, ...] = (4, 20)) -> EpisodeResult:
    return EpisodeResult(
        policy=policy, seed=0, arrival_s=np.zeros(2), completion_s=np.array(completion_s, float),
        template=np.arange(2), work_s=np.array([3.5, 18.0]), end_s=20.0, executors=2, decisions=2,
        tasks=4, trace=schedule(ROWS),
    )  # fmt: skip


def data_in(text: str) -> Any:
    """The data that the page's script will read."""
    found = re.search(r'<script id="replay-data"[^>]*>(.*?)</script>', text, re.DOTALL)
    assert found
    return json.loads(found[1])


def numbers_in(text: str) -> list[int]:
    """LEB128 read byte by byte."""
    numbers, number, shift = [], 0, 0
    for byte in base64.b64decode(text):
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(number)
            number, shift = 0, 0
    return numbers


def rows_in(packed: dict[str, Any]) -> list[tuple[int, ...]]:
    """Unpack a schedule."""
    columns = ("executor", "gap_ms", "job", "kind", "length")
    durations = iter(numbers_in(packed["duration_ms"]))
    rows, clock, previous = [], 0, -1
    for executor, gap, job, kind, length in zip(
        *(numbers_in(packed[c]) for c in columns), strict=True
    ):
        clock = gap if executor != previous else clock + gap
        previous = executor
        for _ in range(length):
            end = clock + next(durations)
            rows.append((executor, job, kind // 2, clock, end, kind % 2))
            clock = end
    assert not list(durations)
    return rows


def test_pack_writes_leb128() -> None:
    packed = base64.b64decode(pack(np.array([0, 127, 128, 300, 2**35], np.int64)))
    assert packed == bytes([0, 127, 0x80, 1, 0xAC, 2, 0x80, 0x80, 0x80, 0x80, 0x80, 1])
    assert pack(np.array([], np.int64)) == ""


def test_stint_is_uninterrupted_work_on_a_stage() -> None:
    packed = pack_schedule(schedule(ROWS))
    assert (packed["rows"], packed["stints"]) == (5, 4)
    assert numbers_in(str(packed["length"])) == [2, 1, 1, 1]
    assert numbers_in(str(packed["gap_ms"])) == [0, 500, 0, 0]
    assert numbers_in(str(packed["kind"])) == [0, 2, 1, 0]
    with pytest.raises(ValueError, match="two tasks at once"):
        pack_schedule(schedule([(0, 0, 0, 0, 10, 0), (0, 1, 0, 9, 12, 0)]))


def test_packed_schedule_is_lossless() -> None:
    rng = np.random.default_rng(7)
    rows = []
    for executor in (0, 2, 3):  # executor 1 never works
        clock = 0
        for _ in range(300):
            clock += int(rng.choice([0, 0, 0, 1, 90_000]))
            end = clock + int(rng.integers(1, 40_000))
            job, stage, moving = (int(rng.integers(n)) for n in (200, 3, 2))
            rows.append((executor, job, stage, clock, end, moving))
            clock = end
    rows += [(4, 0, 0, 0, 5, 0), (4, 0, 1, 5, 5, 0), (4, 0, 2, 5, 9, 0)]  # one without duration
    shuffled = [rows[i] for i in rng.permutation(len(rows))]
    assert rows_in(pack_schedule(schedule(shuffled))) == rows


def test_page_loads_nothing_from_outside() -> None:
    text, again = (build_page([episode()], ["q1", "q2"], "two jobs") for _ in range(2))
    assert text == again
    for outside in ("http:", "https:", "//cdn", "url(", "@import", " src=", "import("):
        assert outside not in text
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy
    assert policy[1].startswith("default-src 'none';")
    assert "unsafe" not in policy[1]
    for tag in ("style", "script"):  # the policy admits these very texts
        block = re.search(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        assert block
        digest = base64.b64encode(hashlib.sha256(block[1].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy[1]


def test_page_data() -> None:
    data = data_in(build_page([episode(), episode("fifo", (10, 20))], ["q1", "q2"], "two jobs"))
    assert data["executors"] == 2
    assert data["jobs"] == {"name": ["q1", "q2"], "arrival_s": [0, 0], "work_s": [3.5, 18]}
    fair, fifo = data["policies"]
    assert (fair["name"], fair["mean_jct_s"], fair["makespan_s"]) == ("fair", 12, 20)
    assert (fifo["name"], fifo["mean_jct_s"], fifo["completion_s"]) == ("fifo", 15, [10, 20])
    assert fair["utilisation"] == pytest.approx((2.5 + 1 + 18) / (2 * 20))  # moves are not work
    assert rows_in(fair["schedule"]) == ROWS


def test_names_are_escaped() -> None:
    nasty = "</script><script>alert(1)</script>"
    text = build_page([episode(nasty)], [nasty, "q2"], nasty)
    assert nasty not in text
    assert data_in(text)["jobs"]["name"][0] == nasty
    assert html.escape(nasty) in text


def test_unfinished_jobs_and_those_beyond_the_horizon() -> None:
    cut = episode(completion_s=(4, float("nan")))
    late = dataclasses.replace(cut, arrival_s=np.array([0, 30.0]))
    data = data_in(build_page([late], ["q1", "never seen"], "cut"))
    assert data["jobs"]["name"] == ["q1"]
    assert data["policies"][0]["completion_s"] == [4]
    text = build_page([cut], ["q1", "q2"], "cut")
    policy = data_in(text)["policies"][0]
    assert policy["completion_s"] == [4, None]
    assert (policy["mean_jct_s"], policy["makespan_s"]) == (4, None)
    assert "Unfinished when the episode ends at 20 s: 1 job under fair." in text
    assert unfinished_note([episode()]) == ""


@pytest.mark.parametrize(
    ("completions", "words"),
    [
        ([(4, 20)], "12 s, of 2 jobs"),
        ([(100, 200), (300, 400)], "150 s, b in 350 s, on the same 2 jobs"),
        ([(100, 200), (100, 200.5)], "150.0 s, b in 150.2 s, on the same 2 jobs"),
        ([(4, 6), (40, 60)], "5.0 s, b in 50.0 s, on the same 2 jobs"),
        ([(4000, 6000), (40, 60)], "5,000 s, b in 50 s, on the same 2 jobs"),
        ([(np.nan, 60), (np.nan, np.nan)], "60 s, b no job, on the same 2 jobs"),
    ],
)
def test_summary_line_compares_policies(completions: list[tuple[float, ...]], words: str) -> None:
    results = [episode(name, both) for name, both in zip("ab", completions, strict=False)]
    assert summary_line(results) == f"a finishes the average job in {words}"


TOY = "replay dag_scheduling --workload toy --set jobs=6 --set executors=3"
TOY_SETTINGS = DagSchedulingSettings(workload="toy", jobs=6, executors=3)


@pytest.mark.slow
def test_command_writes_a_whole_page_or_leaves_the_old_one(
    here: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    command = f"{TOY} --policy sjf-cp --policy fifo --seed 3 -o 'watch me.html'"
    shown = cli(command)
    assert shown.out.startswith("sjf-cp finishes the average job in ")
    assert "Page: watch me.html (0.1 MB)" in shown.out
    assert "running fifo" in shown.err
    (output,) = here.iterdir()
    text = output.read_text()
    assert "dag_scheduling · toy · 6 jobs at once · 3 executors · seed 3" in text
    record = cli.json(command)
    assert (record["page"], list(record["policies"])) == ("watch me.html", ["sjf-cp", "fifo"])
    for policy, (name, figures) in zip(
        data_in(text)["policies"], record["policies"].items(), strict=True
    ):
        result = run_episode(name, TOY_SETTINGS, 3, record=True)
        assert policy["name"] == name
        assert policy["completion_s"] == result.completion_s.tolist()
        assert policy["schedule"]["rows"] == len(result.trace.start_ms)
        assert figures == {"jct": result.mean_jct_s, "makespan": result.makespan_s}
    monkeypatch.setattr(page, "MAX_ROWS", 1)
    assert "tasks and moves are too many for one page" in cli(command, code=2).err
    assert output.read_text() == text
    assert list(here.iterdir()) == [output]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--policy fair --policy fair", "given twice"),
        ("--policy fair --policy fifo --policy random", "3 policies"),
        ("--picture case.png", "dag_scheduling"),
        ("-o .", "cannot write --output"),
    ],
)
def test_invalid_arguments_are_refused(arguments: str, message: str, here: Path, cli: Cli) -> None:
    assert message in cli.error(f"{TOY} {arguments}")
    assert list(here.iterdir()) == []
