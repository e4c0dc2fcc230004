"""Applications: the generated set, the published list, files and payloads."""

from pathlib import Path

import numpy as np
import pytest

from loadmaster.envs.errors import InputError
from loadmaster.envs.pod_scaling.application_files import FILE, load_applications
from loadmaster.envs.pod_scaling.applications import SEGMENTS, compose, generated, generated_split
from tests.traces import needs_traces


def test_generated_set_is_distinct_and_split() -> None:
    train, test = generated_split("train"), generated_split("test")
    assert (len(train), len(test)) == (800, 200)
    assert len({tuple(sorted(segments)) for segments in generated()}) == 1000
    counts = np.bincount([len(segments) for segments in generated()])
    assert counts.nonzero()[0].tolist() == [1, 2, 3]
    assert {segment for segments in test for segment in segments} == set(SEGMENTS)


def test_page_has_the_constants_of_every_segment() -> None:
    page = (Path(__file__).parents[3] / "docs" / "pod_scaling.md").read_text(encoding="utf-8")
    for name, segment in SEGMENTS.items():
        line = next(line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
        values = [float(cell) for cell in line.strip("| ").split("|")[1:]]
        times = [1000 * segment.cpu_s, 1000 * segment.io_s]
        slo_ms = 1000 * (compose([name]).slo_s)
        assert values[:-1] == pytest.approx([*times, *segment[2:]])
        assert values[-1] == pytest.approx(slo_ms, abs=0.5)


def test_application_by_number() -> None:
    (seventh,) = load_applications("test:7", None)
    assert seventh == load_applications("test", None)[7]


def test_application_is_the_sum_of_its_segments() -> None:
    one, two = compose(["matMul"]), compose(["sleep", "matMul"])
    sleep = SEGMENTS["sleep"]
    assert two.cpu_s == pytest.approx(one.cpu_s + sleep.cpu_s)
    assert two.io_s == pytest.approx(one.io_s + sleep.io_s)
    assert two.memory_mib == one.memory_mib + sleep.memory_mib
    assert two.slo_s > two.io_s + np.log(100) * two.cpu_s, "a request alone meets its SLO"
    assert load_applications("sleep+matMul", None)[0] == two
    ml = compose(["mlServe"])
    assert ml.memory_mib > 4 * one.memory_mib
    assert ml.start_s > 5 * one.start_s


def test_payload_changes_work_but_not_the_objective() -> None:
    one = compose(["imageResize"])
    large = one.with_payload(1.5)
    assert large.cpu_s == pytest.approx(1.5 * one.cpu_s)
    assert large.request_mib == pytest.approx(1.5 * one.request_mib)
    assert (large.slo_s, large.memory_mib, large.start_s) == (
        one.slo_s, one.memory_mib, one.start_s,
    )  # fmt: skip


def test_own_file(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(
        "applications:\n"
        "  - {name: shop, segments: [webServe, dynamoRead], slo_s: 0.4}\n"
        "  - {name: own, cpu_s: 0.08, io_s: 0, memory_mib: 150, request_mib: 4, slo_s: 0.6}\n"
    )
    shop, own = load_applications(str(path), None)
    assert (shop.name, shop.slo_s) == ("shop", 0.4)
    assert shop.cpu_s == compose(["webServe", "dynamoRead"]).cpu_s
    assert (own.cpu_s, own.start_s) == (0.08, 2.0)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[", "cannot be read"),
        ("a: 1", "no list 'applications'"),
        ("applications: []", "expected one or more"),
        ("applications: [3]", "expected a mapping"),
        ("applications: [{name: a, segments: []}]", "without segments"),
        ("applications: [{name: a, segments: [matMull]}]", "did you mean 'matMul'"),
        ("applications: [{name: a, segments: [sleep], slo_s: 0}]", "slo_s is 0; expected more"),
        ("applications: [{name: a, segments: [sleep], slo: 1}]", "did you mean 'slo_s'"),
        ("applications: [{name: a, segments: [sleep], slo_s: x}]", "expected a number"),
        ("applications: [{name: a, segments: [sleep], io_s: -1}]", "io_s is -1"),
        ("applications: [{name: a, cpu_s: 1}]", "no io_s"),
        ("applications: [{name: a, segments: [sleep], cpu_s: .nan}]", "cpu_s is nan"),
    ],
)
def test_bad_file_is_refused_in_one_line(tmp_path: Path, text: str, fault: str) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=fault) as found:
        load_applications(str(path), None)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("matMull", "did you mean 'matMul'"),
        ("", "''"),
        ("nowhere.yaml", "cannot be read"),
        ("test:200", "expected a number from 0 to 199"),
        ("train:x", "from 0 to 799"),
    ],
)
def test_unknown_application_is_refused(name: str, fault: str) -> None:
    with pytest.raises(InputError, match=fault):
        load_applications(name, None)


def test_published_list_of_own_lines(tmp_path: Path) -> None:
    (tmp_path / "aware").mkdir()
    (tmp_path / FILE).write_text("sleep,matMul\nreadFile\n")
    names = [application.name for application in load_applications("published", tmp_path)]
    assert names == ["sleep+matMul", "readFile"]
    (tmp_path / "bad.txt").write_text("sleep\nsleep,matMull\n")
    with pytest.raises(InputError, match=r"line 2: segment 'matMull'"):
        load_applications("published", tmp_path / "bad.txt")


@needs_traces
def test_published_list_of_the_artifact() -> None:
    counts = [
        application.name.count("+") + 1 for application in load_applications("published", None)
    ]
    assert np.bincount(counts).tolist() == [0, 11, 121, 868]
