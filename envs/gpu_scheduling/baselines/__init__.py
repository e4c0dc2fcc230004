"""Heuristic baselines by name: an ordering rule combined with a placement rule, and MOSA.

Rules with parameters (`PARAMETERS`) are tuned by `loadmaster calibrate`; those named here apply
where no calibration does.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

# Ordering rules. GIVEN: by keys that the caller wrote into the state. The keys of the rules after
# it change with time.
FIFO, SJF, SRTF, DRF, TETRIS, LAS, GIVEN = 0, 1, 2, 3, 4, 5, 6
TIRESIAS, PREDICTED, GAVEL, THEMIS, SHOCKWAVE, SRSF = 7, 8, 9, 10, 11, 12
# Placement rules. AFFINITY: by the numbers in `PlacementPreferences`. Those after it choose the
# machines of a gang as a whole, apart from FGD.
FIRST_FIT, BEST_FIT, WORST_FIT, LOAD_BALANCE, CONSOLIDATE, AFFINITY = 0, 1, 2, 3, 4, 5
FGD, FASTEST, CHEAPEST, SPEED_PRICE = 6, 7, 8, 9
# Speeds that rules expect: those of the GPU types, running means of measured ones, the true ones,
# and those of a Gaussian process of measured ones.
NOMINAL, MEASURED, TRUE, PROCESS = 0, 1, 2, 3
SPEED_SOURCES = {"nominal": NOMINAL, "measured": MEASURED, "process": PROCESS, "oracle": TRUE}

# Columns of `SimState.rule`.
PARAMETERS = (
    "replan_s", "threshold_gpu_s", "second", "promote", "size", "age", "fair", "stick", "migrate",
    "swap", "price", "spread", "fit", "optimism",
)  # fmt: skip
REPLAN_S, THRESHOLD_GPU_S, SECOND, PROMOTE, SIZE, AGE, FAIR, STICK = range(8)
MIGRATE, SWAP, PRICE, SPREAD, FIT, OPTIMISM = range(8, 14)
# REPLAN_S         replanning interval; 0: the setting `replan_s`
# THRESHOLD_GPU_S  attained service that separates the first two queues of 2D-LAS
# SECOND           threshold of a third queue, in multiples of the first; 0: two queues
# PROMOTE          a job that waited this many times its time on machines joins the first queue;
#                  0: never
# SIZE             exponent of a gang's GPUs in its key
# AGE              predicted time left per second on machines so far
# FAIR             exponent of the finish-time ratio
# STICK            relative advantage of running jobs
# MIGRATE          a job moves to free machines if that divides its time left by this; 0: never
# SWAP             likewise to machines that jobs behind it hold
# PRICE            weight of the work per dollar, beside the speed
# SPREAD           weight of the network's slowdown, beyond its effect on the speed
# FIT              weight of the resources left over on the machine or rack
# OPTIMISM         standard deviations of the process that are added to its expected log speeds


@dataclass(frozen=True)
class Ordering:
    """An ordering rule. Oracles use the durations of jobs."""

    summary: str
    rule: int
    oracle: bool = False
    replans: bool = False  # may preempt running jobs
    at_intervals: bool = False  # replans every `replan_s`; else at every event
    parameters: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Baseline:
    """An ordering and a placement rule; `annealed`: plans are searched instead.

    Expected speeds other than NOMINAL matter to placement rules that know speeds.

    Parameters that are not given are 0.
    """

    name: str
    summary: str
    ordering: Ordering
    placement: int
    annealed: bool = False
    parameters: Mapping[str, float] = field(default_factory=dict)
    speeds: int = NOMINAL
    tuned_as: str = ""  # baseline whose parameters it uses where it is not tuned itself

    @property
    def oracle(self) -> bool:
        return self.ordering.oracle or self.speeds == TRUE

    @property
    def values(self) -> tuple[float, ...]:
        """In the order of PARAMETERS."""
        return tuple(float(self.parameters.get(name, 0.0)) for name in PARAMETERS)


def _at_intervals(summary: str, rule: int, **parameters: float) -> Ordering:
    """Build a preemptive rule that replans at intervals."""
    return Ordering(summary, rule, replans=True, at_intervals=True, parameters=parameters)


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
    "las": _at_intervals(
        "least attained service in two queues, preemptive (2D-LAS, Tiresias)",
        LAS,
        age=1,  # of the predictions for migration
    ),
}
# Preemptive rules with parameters.
TUNED_ORDERINGS: dict[str, Ordering] = {
    "tiresias": _at_intervals(
        "2D-LAS with tuned queues, promotion and migration", TIRESIAS, threshold_gpu_s=18_000, age=1
    ),
    "predicted": _at_intervals(
        "least predicted service left, from the user's finished jobs and the job's age",
        PREDICTED, size=1, age=1, stick=0.2,
    ),
    "gavel": _at_intervals(
        "least normalised throughput so far, in rounds (Gavel, without its linear program)",
        GAVEL, replan_s=360, age=1, stick=0.2,
    ),
    "themis": _at_intervals(
        "highest predicted finish-time ratio, in leases (Themis, without its auction)",
        THEMIS, replan_s=600, age=1, stick=0.2,
    ),
    "shockwave": _at_intervals(
        "predicted service left over finish-time ratio (Shockwave, without its market)",
        SHOCKWAVE, replan_s=120, size=1, age=1, fair=1, stick=0.2,
    ),
    "srsf": Ordering(
        "shortest remaining service at the job's best speed, preemptive (oracle)",
        SRSF,
        oracle=True,
        replans=True,
        parameters={"size": 1, "stick": 0.2, "migrate": 1.2},
    ),
}  # fmt: skip
PLACEMENTS: dict[str, tuple[str, int]] = {
    "first-fit": ("the first machine with room", FIRST_FIT),
    "best-fit": ("the machine with the fewest idle GPUs", BEST_FIT),
    "worst-fit": ("the machine with the most idle GPUs", WORST_FIT),
    "load-balance": ("the machine with the lowest mean utilisation", LOAD_BALANCE),
    "consolidate": ("as few machines and racks as possible", CONSOLIDATE),
}
AWARE_PLACEMENTS: dict[str, tuple[str, int]] = {
    "fastest": ("where the gang is fastest", FASTEST),
    "cheapest": ("where its work is cheapest", CHEAPEST),
    "speed-price": ("tuned between speed, price and spread", SPEED_PRICE),
    "fgd": ("least fragmentation (FGD)", FGD),
}


def _combined(
    orderings: Mapping[str, Ordering], placements: Mapping[str, tuple[str, int]], *names: str
) -> dict[str, Baseline]:
    """All orderings with the named placements."""
    found = {}
    for first, ordering in orderings.items():
        for second in names:
            where, rule = placements[second]
            found[f"{first}-{second}"] = Baseline(
                f"{first}-{second}",
                f"{ordering.summary}; {where}",
                ordering,
                rule,
                parameters=ordering.parameters,
            )
    return found


def _with_speeds(*names: str) -> dict[str, Baseline]:
    """The named orderings with `speed-price`, by speeds that are measured or true."""
    known = (
        ("measured-speeds", "running means of measured speeds", MEASURED),
        ("process-speeds", "a Gaussian process of measured speeds", PROCESS),
        ("true-speeds", "true speeds (oracle of speeds)", TRUE),
    )
    nominal = _combined(TUNED_ORDERINGS | ORDERINGS, AWARE_PLACEMENTS, "speed-price")
    found = {}
    for first in names:
        like = nominal[f"{first}-speed-price"]
        for second, summary, speeds in known:
            name, words = f"{first}-{second}", f"{like.summary}, by {summary}"
            found[name] = replace(like, name=name, summary=words, speeds=speeds, tuned_as=like.name)
    return found


MOSA = "mosa"
_UNPREDICTED = {name: ORDERINGS[name] for name in ("fifo", "las")}
BASELINES: dict[str, Baseline] = {
    **_combined(ORDERINGS, PLACEMENTS, *PLACEMENTS),
    MOSA: Baseline(
        MOSA,
        "simulated annealing of order and placement for completion time and fee (oracle)",
        Ordering("searched", GIVEN, oracle=True),
        AFFINITY,
        annealed=True,
    ),
    **_combined(ORDERINGS, AWARE_PLACEMENTS, "fastest", "speed-price"),
    **_combined(_UNPREDICTED, AWARE_PLACEMENTS, "cheapest", "fgd"),
    **_combined({"tiresias": TUNED_ORDERINGS["tiresias"]}, PLACEMENTS, "consolidate"),
    **_combined(TUNED_ORDERINGS, AWARE_PLACEMENTS, "speed-price"),
    **_with_speeds("las", "predicted"),
}
