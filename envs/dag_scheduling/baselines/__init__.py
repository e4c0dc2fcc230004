"""Baseline heuristics by name."""

from dataclasses import dataclass

Rule = tuple[int, float, float, bool]  # rule, alpha, threshold, release, for compiled code
FIFO, FAIR, WEIGHTED, SHORTEST, PACK, TROUBLESOME, RANDOM = 0, 1, 2, 3, 4, 5, 6


@dataclass(frozen=True)
class Baseline:
    """A heuristic: its rule (`rules.py`) and that rule's parameters."""

    name: str
    summary: str
    rule: int
    alpha: float = 0.0  # exponent of a job's work in its share
    threshold: float = 1.0  # Graphene*: share of the longest task that makes a stage troublesome
    release: bool = False  # executors beyond their job's share leave it when their stage ends
    calibrated: bool = False  # parameters come from `loadmaster calibrate`

    @property
    def parameters(self) -> Rule:
        return self.rule, self.alpha, self.threshold, self.release


BASELINES: dict[str, Baseline] = {
    baseline.name: baseline
    for baseline in (
        Baseline("fifo", "jobs in order of arrival, each may take the whole cluster", FIFO),
        Baseline("sjf-cp", "shortest job first, critical path first within it", SHORTEST),
        Baseline("fair", "an equal share of the executors for every job", FAIR),
        Baseline("weighted-fair-naive", "shares in proportion to a job's work", WEIGHTED, 1.0),
        Baseline(
            "weighted-fair", "shares in proportion to work^alpha, tuned", WEIGHTED, calibrated=True
        ),
        Baseline("tetris", "the stage that packs best, short jobs preferred", PACK),
        Baseline(
            "graphene",
            "troublesome stages first, tuned shares (Graphene*)",
            TROUBLESOME,
            calibrated=True,
        ),
        Baseline("random", "any legal stage and limit, uniformly", RANDOM),
    )
}
