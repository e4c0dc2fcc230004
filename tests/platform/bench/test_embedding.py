"""The benchmark of embeddings: similarity of made ones, unknown applications, and the files."""

import csv
from pathlib import Path

import numpy as np
import pytest

from loadmaster.envs.pod_scaling.applications import compose
from loadmaster.platform.bench import embedding
from loadmaster.platform.bench.embedding import KNOWN, LONGER, UNKNOWN, Effort, measure_policy
from loadmaster.platform.systems.aware.embedding import (
    LOADS,
    Embedded,
    project,
    similarity_of,
    unknown_applications,
)
from tests.models.aware.parts import policy_of
from tests.platform.cli.one_line import Cli, Patch

SEGMENTS = (("sleep",), ("sleep", "matMul"), ("webServe", "S3Read"), ("webServe",))
SMALL = Effort(applications=3, episodes=1, known=2, unknown=2, steps=12)


def test_similarity_by_hand() -> None:
    first = np.array([[1.0, 0.1], [1.0, -0.1], [-1.0, 0.1], [-1.0, -0.1]])
    second = first[[1, 0, 2, 3]]
    found = similarity_of(Embedded(SEGMENTS, np.stack([first, second])))
    assert found.nearest_overlap == pytest.approx(0.5)
    assert found.chance_overlap == pytest.approx(0.5 * 4 / 12)
    near = 0.99 / 1.01  # the cosine of the first two
    assert found.same_cosine == pytest.approx((near + 1) / 2)
    assert found.same_nearest == pytest.approx(0.5)
    assert found.first_component == pytest.approx(1 / 1.01)
    far = np.array([[-1.0, -near], [-near, -1.0]]).mean()
    expected = (2 * 1.0 + 2 * near + 8 * far) / 12
    assert found.other_cosine == pytest.approx(expected)


def test_the_projection_keeps_what_differs_most() -> None:
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(2, 4, 6)) * np.array([0.01, 5.0, 0.01, 0.01, 1.0, 0.01])
    found = project(Embedded(SEGMENTS, rows))
    assert found.shape == (2, 4, 2)
    assert np.abs(np.corrcoef(found[..., 0].ravel(), rows[..., 1].ravel())[0, 1]) > 0.95


def test_unknown_applications_have_four_segments_and_five_times_the_cpu() -> None:
    for app, longer in zip(unknown_applications(5), unknown_applications(5, True), strict=True):
        plain = compose(app.name.split("+"))
        assert len(app.name.split("+")) == 4
        assert app.cpu_s == longer.cpu_s == pytest.approx(5 * plain.cpu_s)
        assert (app.slo_s, longer.slo_s) == (plain.slo_s, pytest.approx(5 * plain.slo_s))
        assert app.memory_mib == plain.memory_mib


def test_figures_and_files(tmp_path: Path) -> None:
    steps: list[str] = []
    result = measure_policy(policy_of(), steps.append, SMALL)
    figures = {figure.name: figure for figure in result.figures()}
    assert len(figures) == 4 + 4 * 3
    assert len(steps) == 3 + 3
    assert figures[f"aware/{UNKNOWN}/flagged"].value == 100
    assert figures[f"aware/{UNKNOWN}/violated_steps"].value > 0
    assert figures[f"aware/{KNOWN}/decisions_flagged"].value < 50
    embedding.write_embedding(result, tmp_path / "out")
    with (tmp_path / "out" / embedding.TABLE).open() as file:
        rows = list(csv.DictReader(file))
    assert [row["load"] for row in rows] == [load for load in LOADS for _ in range(3)]
    with (tmp_path / "out" / embedding.NOVELTY_TABLE).open() as file:
        kinds = [row["kind"] for row in csv.DictReader(file)]
    assert kinds == [KNOWN] * 2 + [UNKNOWN] * 2 + [LONGER] * 2
    assert (tmp_path / "out" / embedding.CHART).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("line", ["--applications 1", "--applications 201", "decima"])
def test_wrong_options_are_refused(line: str, cli: Cli, monkeypatch: Patch) -> None:
    monkeypatch.setattr(embedding, "measure_policy", None)
    assert "expected" in cli.error(f"bench embedding {line}")


def test_command_prints_figures_and_writes_files(
    cli: Cli, monkeypatch: Patch, tmp_path: Path
) -> None:
    result = measure_policy(policy_of(), lambda step: None, SMALL)
    monkeypatch.setattr(embedding, "measure_policy", lambda policy, show, effort: result)
    found = cli.json(f"bench embedding aware --applications 3 --output {tmp_path}")
    assert [one["name"] for one in found["results"]] == [one.name for one in result.figures()]
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted(embedding.FILES)
