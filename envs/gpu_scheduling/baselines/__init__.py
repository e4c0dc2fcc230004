"""Heuristic baselines by name: an ordering rule combined with a placement rule, and MOSA."""

from dataclasses import dataclass

# Ordering rules. GIVEN: by keys that the caller wrote into the state.
FIFO, SJF, SRTF, DRF, TETRIS, LAS, GIVEN = 0, 1, 2, 3, 4, 5, 6
# Placement rules. AFFINITY: by the numbers in `PlacementPreferences`.
FIRST_FIT, BEST_FIT, WORST_FIT, LOAD_BALANCE, CONSOLIDATE, AFFINITY = 0, 1, 2, 3, 4, 5


@dataclass(frozen=True)
class Ordering:
    """An ordering rule. Oracles use the durations of jobs."""

    summary: str
    rule: int
    oracle: bool = False
    replans: bool = False  # may preempt running jobs
    at_intervals: bool = False  # replans every `replan_s`; else at every event


@dataclass(frozen=True)
class Baseline:
    """An ordering and a placement rule; `annealed`: plans are searched instead."""

    name: str
    summary: str
    ordering: Ordering
    placement: int
    annealed: bool = False

    @property
    def oracle(self) -> bool:
        return self.ordering.oracle


ORDERINGS: dict[str, Ordering] = {
    "fifo": Ordering("first come, first served", FIFO),
    "sjf": Ordering("shortest job first (oracle)", SJF, oracle=True),
    "srtf": Ordering(
        "shortest remaining time first, preemptive (oracle)", SRTF, oracle=True, replans=True
    ),
    "drf": Ordering("the user with the lowest dominant share first", DRF),
    "tetris": Ordering(
        "best alignment with what is free, short work preferred (oracle)", TETRIS, oracle=True
    ),
    "las": Ordering(
        "least attained service in two queues, preemptive (2D-LAS, Tiresias)",
        LAS,
        replans=True,
        at_intervals=True,
    ),
}
PLACEMENTS: dict[str, tuple[str, int]] = {
    "first-fit": ("the first machine with room", FIRST_FIT),
    "best-fit": ("the machine with the fewest idle GPUs", BEST_FIT),
    "worst-fit": ("the machine with the most idle GPUs", WORST_FIT),
    "load-balance": ("the machine with the lowest mean utilisation", LOAD_BALANCE),
    "consolidate": ("as few machines and racks as possible", CONSOLIDATE),
}
BASELINES: dict[str, Baseline] = {
    f"{name}-{place}": Baseline(f"{name}-{place}", f"{ordering.summary}; {where}", ordering, rule)
    for name, ordering in ORDERINGS.items()
    for place, (where, rule) in PLACEMENTS.items()
}
MOSA = "mosa"
BASELINES[MOSA] = Baseline(
    MOSA,
    "simulated annealing of order and placement for completion time and fee (oracle)",
    Ordering("searched", GIVEN, oracle=True),
    AFFINITY,
    annealed=True,
)
