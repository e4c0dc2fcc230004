"""Supervised test of Decima's encoder: the critical path from every stage of random DAGs.

The path length is regressed from task durations alone, which needs messages over many levels and a
maximum over children. Deeper DAGs than those of the training show whether the rule was learned.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from loadmaster.envs.dag_scheduling import observation as obs_cols
from loadmaster.models.decima.features import JOB_INPUTS, SHARED, STAGE_INPUTS, StageBatch
from loadmaster.models.decima.network import DagEncoder
from loadmaster.models.decima.settings import DecimaSettings
from loadmaster.platform.bench.measurements import Figure

DURATION = SHARED + 2  # index of a stage's input that is its task duration
PER_PATH = 1 / 5  # targets of about one
ITERATIONS = 3000  # of the benchmark


@dataclass(frozen=True)
class Errors:
    """Mean error over stages, relative to the mean path length; `blind` predicts the mean."""

    trained_depth: float
    deeper: float
    blind: float


def random_dags(rng: np.random.Generator, dags: int, depth: int) -> tuple[StageBatch, Tensor]:
    """Layered DAGs of `depth` levels, one to three stages a level, and each stage's path length."""
    durations: list[float] = []
    heights: list[int] = []
    paths: list[float] = []
    parents: list[int] = []
    children: list[int] = []
    owner: list[int] = []
    below: list[list[int]] = [[] for _ in range(dags)]  # the last level of each DAG
    for height in range(depth):
        for dag in range(dags):
            level = []
            for _ in range(int(rng.integers(1, 4))):
                row = len(durations)
                durations.append(float(rng.uniform(0.1, 2.0)))
                heights.append(height)
                owner.append(dag)
                chosen = []
                if height > 0:
                    count = int(rng.integers(1, min(3, len(below[dag])) + 1))
                    chosen = rng.choice(below[dag], size=count, replace=False).tolist()
                parents += [row] * len(chosen)
                children += chosen
                paths.append(durations[row] + max((paths[c] for c in chosen), default=0.0))
                level.append(row)
            below[dag] = level
    inputs = torch.zeros(len(durations), STAGE_INPUTS)
    inputs[:, DURATION] = torch.tensor(durations)
    rows = torch.tensor(owner)
    batch = StageBatch(
        inputs=inputs,
        height=torch.tensor(heights),
        schedulable=torch.ones(len(durations), dtype=torch.bool),
        row_job=rows,
        row_observation=rows,
        row_place=torch.arange(len(durations)),
        job_inputs=torch.zeros(dags, JOB_INPUTS),
        job_observation=torch.arange(dags),
        first_job=torch.arange(dags),
        parent=torch.tensor(parents, dtype=torch.long),
        child=torch.tensor(children, dtype=torch.long),
        stages=torch.zeros(len(durations), obs_cols.STAGE_FEATURES),
        jobs=torch.zeros(dags, obs_cols.JOB_FEATURES),
        cluster=torch.zeros(dags, obs_cols.CLUSTER_FEATURES),
    )
    return batch, torch.tensor(paths)


def train_and_measure(
    iterations: int,
    seed: int = 0,
    depth: int = 8,
    deeper: int = 12,
    width: int = 8,
    on_iteration: Callable[[int, float], None] = lambda iteration, loss: None,
) -> Errors:
    """Train on DAGs of 2 to `depth` levels; errors on unseen DAGs of that depth and of `deeper`."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    encoder = DagEncoder(DecimaSettings(width=width))
    read = nn.Linear(width, 1)
    weights = [*encoder.parameters(), *read.parameters()]
    optimiser = torch.optim.Adam(weights, lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, iterations)
    for iteration in range(iterations):
        batch, path = random_dags(rng, dags=32, depth=int(rng.integers(2, depth + 1)))
        loss = nn.functional.smooth_l1_loss(read(encoder(batch)).squeeze(1), path * PER_PATH)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimiser.step()
        schedule.step()
        on_iteration(iteration, loss.item())

    def error(levels: int) -> tuple[float, float]:
        batch, path = random_dags(rng, dags=200, depth=levels)
        with torch.no_grad():
            predicted = read(encoder(batch)).squeeze(1) / PER_PATH
        scale = path.mean()
        return float((predicted - path).abs().mean() / scale), float(
            (path - scale).abs().mean() / scale
        )

    (known, blind), (unknown, _) = error(depth), error(deeper)
    return Errors(trained_depth=known, deeper=unknown, blind=blind)


def measure(report_step: Callable[[str], None]) -> Iterator[Figure]:
    """Relative errors; `error_blind` is that of predicting the mean."""
    report_step(f"decima: {ITERATIONS} iterations of supervised training (about a minute)")
    errors = train_and_measure(ITERATIONS)
    yield Figure("decima/encoder/critical_path/error_8_levels", 100 * errors.trained_depth, "%")
    yield Figure("decima/encoder/critical_path/error_12_levels", 100 * errors.deeper, "%")
    yield Figure("decima/encoder/critical_path/error_blind", 100 * errors.blind, "%")
