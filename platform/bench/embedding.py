"""Benchmark of AWARE's embedding of unseen applications, and of the detection of unknown ones."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure as Chart

from loadmaster.envs.errors import InputError, unknown_name
from loadmaster.envs.pod_scaling.applications import (
    GENERATED,
    TEST,
    TRAINED,
    compose,
    generated_split,
)
from loadmaster.envs.pod_scaling.settings import PodScalingSettings
from loadmaster.models.aware.policy import AwarePolicy
from loadmaster.models.bundle import load_bundle
from loadmaster.models.manifest import pretrained_folder
from loadmaster.platform.bench.measurements import Figure, write_tables
from loadmaster.platform.evaluation import charts
from loadmaster.platform.evaluation.files import check_writable
from loadmaster.platform.systems.aware.embedding import (
    LOADS,
    RULE,
    Embedded,
    NoveltyRow,
    embed_applications,
    known_applications,
    measure_novelty,
    project,
    similarity_of,
    unknown_applications,
)

SYSTEM = "aware"
FILES = TABLE, NOVELTY_TABLE, CHART = "embedding.csv", "novelty.csv", "embedding.png"
KNOWN, UNKNOWN, LONGER = "known", "unknown", "unknown-longer-slo"  # kinds of applications
MARKERS = ("o", "^")  # of the loads


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    applications: int = 40  # of the test set, for the embedding
    episodes: int = 2  # of each, under each load
    known: int = 200  # for novelty
    unknown: int = 60
    steps: int = 100  # of an episode


class EmbeddingResult:
    """Embeddings and novelty, with their figures."""

    def __init__(self, embedded: Embedded, novelty: Sequence[NoveltyRow]) -> None:
        self.embedded, self.novelty = embedded, novelty

    def figures(self) -> Iterator[Figure]:
        found, prefix = similarity_of(self.embedded), f"{SYSTEM}/embedding"
        chance = 100 / len(self.embedded.segments)
        nearest, overlap = found.nearest_overlap, found.chance_overlap
        yield Figure(f"{prefix}/nearest_overlap", nearest, "Jaccard", overlap, "chance")
        same, other = found.same_cosine, found.other_cosine
        yield Figure(f"{prefix}/two_loads", same, "cosine", other, "two applications")
        yield Figure(f"{prefix}/same_nearest", 100 * found.same_nearest, "%", chance, "chance")
        yield Figure(f"{prefix}/first_component", 100 * found.first_component, "%")
        for kind in (KNOWN, UNKNOWN, LONGER):
            rows, prefix = [row for row in self.novelty if row.kind == kind], f"{SYSTEM}/{kind}"
            mean = pd.DataFrame([asdict(row) for row in rows]).mean(numeric_only=True)
            yield Figure(f"{prefix}/flagged", 100 * mean.flagged, "%")
            yield Figure(f"{prefix}/decisions_flagged", 100 * mean.decisions_flagged, "%")
            yield Figure(f"{prefix}/reward", mean.reward, "a step", mean.rule_reward, RULE)
            broken, by_rule = mean.violated, mean.rule_violated
            yield Figure(f"{prefix}/violated_steps", broken, "%", by_rule, RULE, False)


def measure(
    report_step: Callable[[str], None], system: str | None, applications: int | None, folder: Path
) -> Iterator[Figure]:
    """Measure the shipped policy, and write tables and chart to the folder."""
    if system not in (None, SYSTEM):
        raise unknown_name("system", system, [SYSTEM])
    most = GENERATED - TRAINED
    if applications is not None and not 2 <= applications <= most:
        raise InputError(f"--applications is {applications}; expected 2 to {most}")
    check_writable(folder)
    policy = AwarePolicy.from_bundle(load_bundle(pretrained_folder() / SYSTEM))
    effort = Effort() if applications is None else Effort(applications)
    result = measure_policy(policy, report_step, effort)
    write_embedding(result, folder)
    report_step(f"written: {', '.join(str(folder / name) for name in FILES)}")
    yield from result.figures()


def measure_policy(
    policy: AwarePolicy, report_step: Callable[[str], None], effort: Effort
) -> EmbeddingResult:
    settings = PodScalingSettings(steps=effort.steps)
    segments = generated_split(TEST)[: effort.applications]

    def on_application(number: int) -> None:
        report_step(f"embedding: application {number + 1} of {len(segments)}")

    embedded = embed_applications(policy, segments, effort.episodes, settings, on_application)
    novelty: list[NoveltyRow] = []
    for kind, applications in (
        (KNOWN, known_applications(effort.known)),
        (UNKNOWN, unknown_applications(effort.unknown)),
        (LONGER, unknown_applications(effort.unknown, longer_slo=True)),
    ):
        report_step(f"novelty: {len(applications)} applications, {kind}")
        novelty += measure_novelty(policy, kind, applications, settings)
    return EmbeddingResult(embedded, novelty)


def write_embedding(result: EmbeddingResult, folder: Path) -> None:
    """Replace tables and chart atomically."""
    write_tables(folder, {TABLE: table_of(result.embedded), NOVELTY_TABLE: result.novelty})
    charts.save(folder / CHART, lambda: draw_embedding(result.embedded))


def table_of(embedded: Embedded) -> pd.DataFrame:
    """A row for each application and load, with its place in the projection."""
    places, nearest, overlaps = project(embedded), embedded.nearest, embedded.overlaps
    rows = []
    for load, some in zip(LOADS, places, strict=True):
        for number, (segments, (x, y)) in enumerate(zip(embedded.segments, some, strict=True)):
            rows.append(
                {
                    "application": "+".join(segments),
                    "load": load,
                    "cpu_ms": 1000 * compose(segments).cpu_s,
                    "x": x,
                    "y": y,
                    "cosine_two_loads": embedded.cosines[number, number],
                    "nearest": "+".join(embedded.segments[nearest[number]]),
                    "nearest_overlap": overlaps[number, nearest[number]],
                }
            )
    return pd.DataFrame(rows).round(5)


def draw_embedding(embedded: Embedded) -> Chart:
    """The projection: colour is CPU time, and a line joins an application under both loads."""
    figure = Chart(figsize=(8, 5.6), layout="constrained")
    axes, places = figure.subplots(), project(embedded)
    cpu_ms = [1000 * compose(segments).cpu_s for segments in embedded.segments]
    axes.plot(places[..., 0], places[..., 1], color=charts.FAINT, linewidth=1, zorder=1)
    marks = None
    for load, marker, some in zip(LOADS, MARKERS, places, strict=True):
        marks = axes.scatter(
            some[:, 0], some[:, 1], c=cpu_ms, norm="log", marker=marker, label=load, zorder=2
        )
    if marks is not None:
        figure.colorbar(marks, ax=axes, label="CPU time of a request, ms")
    axes.set(xlabel="first principal component", ylabel="second principal component")
    title = f"Embeddings of {len(embedded.segments)} unseen applications under two loads"
    axes.set_title(title, loc="left", fontweight="bold")
    axes.legend()
    return figure
