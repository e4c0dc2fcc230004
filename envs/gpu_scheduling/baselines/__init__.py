"""The heuristics a learned scheduler has to beat, by name: an ordering and a placement each."""

from __future__ import annotations

from dataclasses import dataclass

from loadmaster.envs.gpu_scheduling import rule_ids as rules


@dataclass(frozen=True)
class Ordering:
    """Who goes next. An oracle knows how long jobs will run, which nobody can be sure of."""

    summary: str
    rule: int
    oracle: bool = False
    replans: bool = False  # running jobs may have to give way
    by_the_clock: bool = False  # at every `replan_s`; else at every event


@dataclass(frozen=True)
class Baseline:
    """An ordering and a placement. Where `annealed`, plans are searched for instead."""

    name: str
    summary: str
    ordering: Ordering
    placement: int
    annealed: bool = False

    @property
    def oracle(self) -> bool:
        return self.ordering.oracle


ORDERINGS: dict[str, Ordering] = {
    "fifo": Ordering("first come, first served", rules.FIFO),
    "sjf": Ordering("shortest job first (oracle)", rules.SJF, oracle=True),
    "srtf": Ordering(
        "shortest remaining time first, preemptive (oracle)",
        rules.SRTF,
        oracle=True,
        replans=True,
    ),
    "drf": Ordering("the user with the lowest dominant share first", rules.DRF),
    "tetris": Ordering(
        "best alignment with what is free, short work preferred (oracle)",
        rules.TETRIS,
        oracle=True,
    ),
    "las": Ordering(
        "least attained service in two queues, preemptive (2D-LAS, Tiresias)",
        rules.LAS,
        replans=True,
        by_the_clock=True,
    ),
}
PLACEMENTS: dict[str, tuple[str, int]] = {
    "first-fit": ("the first machine with room", rules.FIRST_FIT),
    "best-fit": ("the machine with the fewest idle GPUs", rules.BEST_FIT),
    "worst-fit": ("the machine with the most idle GPUs", rules.WORST_FIT),
    "load-balance": ("the machine with the lowest mean utilisation", rules.LOAD_BALANCE),
    "consolidate": ("as few machines and racks as possible", rules.CONSOLIDATE),
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
    Ordering("searched", rules.GIVEN, oracle=True),
    rules.AFFINITY,
    annealed=True,
)
