"""Baseline heuristics by name, with their parameters."""

from collections.abc import Mapping
from dataclasses import dataclass, field

Rule = tuple[int, tuple[float, ...]]  # rule and its parameters, for compiled code
FIFO, FAIR, WEIGHTED, SHORTEST, PACK, TROUBLESOME, RANDOM = 0, 1, 2, 3, 4, 5, 6
SRPT_CAPS, HESRPT, CARBYNE = 7, 8, 9

# Columns of the parameters of all rules, for compiled code; `rules.py` and `remaining_work.py`
# say what they do.
PARAMETERS = (
    "alpha", "threshold", "release", "scale", "share", "stay", "path", "spill", "speedup",
    "altruism",
)  # fmt: skip
ALPHA, THRESHOLD, RELEASE, SCALE, SHARE, STAY, PATH, SPILL, SPEEDUP, ALTRUISM = range(10)


@dataclass(frozen=True)
class Baseline:
    """A heuristic: its rule and that rule's parameters by name; those not given are 0."""

    name: str
    summary: str
    rule: int
    parameters: Mapping[str, float] = field(default_factory=dict)
    calibrated: bool = False  # parameters come from `loadmaster calibrate`

    @property
    def encoded(self) -> Rule:
        """The rule, and its parameters in the order of PARAMETERS, for compiled code."""
        return self.rule, tuple(float(self.parameters.get(name, 0.0)) for name in PARAMETERS)


BASELINES: dict[str, Baseline] = {
    baseline.name: baseline
    for baseline in (
        Baseline("fifo", "jobs in order of arrival, each may take the whole cluster", FIFO),
        Baseline("sjf-cp", "shortest job first, critical path first within it", SHORTEST),
        Baseline("fair", "an equal share of the executors for every job", FAIR),
        Baseline(
            "weighted-fair-naive", "shares in proportion to a job's work", WEIGHTED, {"alpha": 1.0}
        ),
        Baseline(
            "weighted-fair", "shares in proportion to work^alpha, tuned", WEIGHTED,
            {"alpha": 0.0, "release": 0.0}, calibrated=True,
        ),
        Baseline("tetris", "the stage that packs best, short jobs preferred", PACK),
        Baseline(
            "graphene", "troublesome stages first, tuned shares (Graphene*)", TROUBLESOME,
            {"alpha": 0.0, "threshold": 1.0, "release": 0.0}, calibrated=True,
        ),
        Baseline(
            "srpt-caps", "least work left first, up to scale * work^alpha * (E/jobs)^share, tuned",
            SRPT_CAPS,
            {"scale": 0.13, "alpha": 0.45, "share": 0.9, "stay": 1.0, "path": 0.2, "spill": 0.0},
            calibrated=True,
        ),
        Baseline(
            "hesrpt", "shares that grow towards the least work left, tuned (heSRPT)", HESRPT,
            {"speedup": 0.5, "stay": 1.0}, calibrated=True,
        ),
        Baseline(
            "carbyne", "fair shares, of which jobs yield what they can spare, tuned (Carbyne)",
            CARBYNE, {"altruism": 1.0, "stay": 1.0}, calibrated=True,
        ),
        Baseline("random", "any legal stage and limit, uniformly", RANDOM),
    )
}  # fmt: skip
