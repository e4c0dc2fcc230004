"""A training run under random kills: their schedule, what each cost, and checks on the run's files.

The kills themselves are in `fault_injection.py`. Everything here is a function of what was seen.
"""

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from loadmaster.models.files import atomic_text_file
from loadmaster.platform.evaluation import charts

Kind = Literal["worker", "node", "driver"]
KINDS: tuple[Kind, ...] = get_args(Kind)
QUIET_END = 20  # iterations after the last planned kill, in which its workers come back
CLOCKS = ("seconds", "decisions_per_s")  # columns of metrics.csv that differ in any two runs
FILES = TABLE, SUMMARY, CHART = "faults.csv", "faults.json", "faults.png"
COLOURS = dict(zip(KINDS, (charts.PALETTE[2], charts.PALETTE[6], charts.INK), strict=True))
MARKERS = dict(zip(KINDS, ("o", "s", "X"), strict=True))

Row = Mapping[str, float]  # of metrics.csv


class PlannedKill(NamedTuple):
    """A kill once an iteration is recorded; fractions are from 0 to 1."""

    kind: Kind
    iteration: int
    delay: float  # after that iteration's record, as a fraction of an iteration's time
    choice: float  # which of the processes of that kind


class Seen(NamedTuple):
    """What the run's files had at a time."""

    second: float
    iteration: int  # the latest recorded
    workers: float  # live ones in it
    resumed: tuple[int, ...]  # iterations from which the training was resumed so far


@dataclass(frozen=True)
class Kill:
    """One kill and its consequences; None where there was no later iteration."""

    number: int
    kind: Kind
    second: float  # since the training's start
    iteration: int  # the latest recorded at the kill
    checkpoint: int  # the latest complete one at the kill
    rollout_workers: int  # how many were killed
    resumes: int = 0  # of the driver, until the next kill
    went_on_from: int | None = None
    repeated: int | None = None  # iterations
    recovery_s: float | None = None  # until the next iteration was recorded
    all_workers_s: float | None = None  # until one ran on all workers; None: a kill came before


class Check(NamedTuple):
    name: str
    holds: bool
    detail: str


@dataclass(frozen=True)
class Faults:
    """A run under kills and an undisturbed run with the same settings."""

    iterations: int  # configured
    workers: int
    planned: int
    kills: tuple[Kill, ...]
    seen: tuple[Seen, ...]
    rows: tuple[Row, ...]  # metrics.csv at the end
    exit_code: int | None  # None: no iteration was recorded for too long
    bundle_iterations: int | str  # of the final bundle, or why it cannot be loaded
    undisturbed: tuple[Row, ...]
    undisturbed_s: float


def schedule(seed: int, kills: int, iterations: int) -> list[PlannedKill]:
    """Draw kills of every kind, as many of each as possible, in different iterations."""
    rng = np.random.default_rng(seed)
    kinds = [KINDS[place % len(KINDS)] for place in rng.permutation(kills)]
    chosen = np.sort(1 + rng.choice(iterations - QUIET_END, kills, replace=False))
    fractions = rng.random((kills, 2))
    return [
        PlannedKill(kind, int(iteration), float(delay), float(choice))
        for kind, iteration, (delay, choice) in zip(kinds, chosen, fractions, strict=True)
    ]


def with_consequences(kills: Sequence[Kill], seen: Sequence[Seen], workers: int) -> list[Kill]:
    """Add to each kill what was seen until the next one."""
    ends = [*(kill.second for kill in kills[1:]), float("inf")]
    harmful = [kill.second for kill in kills if kill.rollout_workers or kill.kind == "driver"]
    found = []
    for kill, end in zip(kills, ends, strict=True):
        before = [one for one in seen if one.second <= kill.second][-1]
        later = [one for one in seen if kill.second < one.second <= end]
        after = recovered(kill, before.resumed, later)
        resumes = later[-1].resumed[len(before.resumed) :] if later else ()
        base = min((kill.iteration, *resumes))
        until = min((second for second in harmful if second > kill.second), default=float("inf"))
        full = (
            one.second - kill.second
            for one in seen
            if after and after.second <= one.second <= until and one.workers == workers
        )
        found.append(
            replace(
                kill,
                resumes=len(resumes),
                went_on_from=base if after else None,
                repeated=kill.iteration - base if after else None,
                recovery_s=after.second - kill.second if after else None,
                all_workers_s=next(full, None),
            )
        )
    return found


def recovered(kill: Kill, resumed: Sequence[int], later: Iterable[Seen]) -> Seen | None:
    """The first iteration recorded after the kill, by what was seen later; None: none yet.

    `resumed` are the resumes before the kill. A resumed run drops rows, and then adds some.
    """
    for one in later:
        new = one.resumed[len(resumed) :]
        if one.iteration > (new[-1] if new else kill.iteration):
            return one
    return None


def checks_of(faults: Faults) -> list[Check]:
    return [
        _check_kills(faults),
        _check_iterations(faults),
        _check_drivers(faults),
        _check_others(faults),
        _check_workers(faults),
        _check_bundle(faults),
        _check_undisturbed(faults),
    ]


def _check_kills(faults: Faults) -> Check:
    ended = "stalled" if faults.exit_code is None else f"ended with exit code {faults.exit_code}"
    done = [kill for kill in faults.kills if kill.recovery_s is not None]
    detail = f"{len(done)} of {faults.planned}, each followed by an iteration; the run {ended}"
    return Check("kills", len(done) == faults.planned and faults.exit_code == 0, detail)


def _check_iterations(faults: Faults) -> Check:
    """Every iteration is recorded once, in order."""
    found = [int(row["iteration"]) for row in faults.rows]
    expected = list(range(faults.iterations + 1))  # 0 is the validation before training
    missing = sorted(set(expected) - set(found))
    twice = sorted(one for one, count in Counter(found).items() if count > 1)
    detail = f"{len(set(found) - {0})} of {faults.iterations} recorded, each once"
    if found != expected:
        detail = f"expected 0 to {faults.iterations}; missing: {missing}, repeated: {twice}"
    return Check("iterations", found == expected, detail)


def _check_drivers(faults: Faults) -> Check:
    """A killed driver is resumed once, from the latest checkpoint."""
    drivers = [kill for kill in faults.kills if kill.kind == "driver"]
    wrong = [
        f"kill {kill.number}: {kill.resumes} resumes, from {kill.went_on_from}, the checkpoint was "
        f"of {kill.checkpoint}"
        for kill in drivers
        if kill.resumes != 1 or kill.went_on_from != kill.checkpoint
    ]
    repeated = sum(kill.repeated or 0 for kill in drivers)
    detail = f"{len(drivers)} resumed from the latest checkpoint, {repeated} iterations repeated"
    return Check("driver kills", not wrong, "; ".join(wrong) or detail)


def _check_others(faults: Faults) -> Check:
    """The driver survives the kill of a worker or node, and no iteration is lost."""
    others = [kill for kill in faults.kills if kill.kind != "driver"]
    wrong = [
        f"kill {kill.number}: {kill.resumes} resumes, went on from {kill.went_on_from}, not from "
        f"{kill.iteration}"
        for kill in others
        if kill.resumes or kill.went_on_from != kill.iteration
    ]
    detail = f"{len(others)} without an iteration lost"
    return Check("worker and node kills", not wrong, "; ".join(wrong) or detail)


def _check_workers(faults: Faults) -> Check:
    """Killed workers are replaced: after the last kill an iteration runs on all of them."""
    last = faults.kills[-1].second if faults.kills else 0.0
    most = max((one.workers for one in faults.seen if one.second > last), default=0)
    detail = f"{most:.0f} of {faults.workers} alive after the last kill"
    return Check("workers", most == faults.workers, detail)


def _check_bundle(faults: Faults) -> Check:
    found = faults.bundle_iterations
    detail = f"loads, of iteration {found}" if isinstance(found, int) else found
    return Check("final bundle", found == faults.iterations, detail)


def _check_undisturbed(faults: Faults) -> Check:
    """As many iterations as undisturbed, with equal values until the first worker is killed.

    A resumed run repeats exactly what was not saved, so kills of drivers change no value. The
    iteration in which a worker dies learns from the rollouts of the others.
    """
    first = next((kill.iteration for kill in faults.kills if kill.kind != "driver"), None)
    last = faults.iterations if first is None else first
    same, total = equal_until(faults.rows, faults.undisturbed), len(faults.undisturbed) - 1
    holds = len(faults.rows) == len(faults.undisturbed) and same >= last
    detail = f"{total} iterations undisturbed; equal values until iteration {same}, as expected "
    return Check("undisturbed run", holds, f"{detail}until {last} at least")


def equal_until(rows: Sequence[Row], others: Sequence[Row]) -> int:
    """The last iteration up to which both runs have equal values, but for times; -1: none."""
    same = -1
    for one, other in zip(rows, others, strict=False):
        if _values(one) != _values(other):
            break
        same = int(one["iteration"])
    return same


def _values(row: Row) -> dict[str, float]:
    return {name: value for name, value in row.items() if not name.endswith(CLOCKS)}


def final_validation(rows: Sequence[Row]) -> float | None:
    return next((row["validation"] for row in reversed(rows) if "validation" in row), None)


def summary_of(faults: Faults, settings: Mapping[str, Any]) -> dict[str, Any]:
    checks = checks_of(faults)
    full = max((row.get("rollouts", 0.0) for row in faults.undisturbed), default=0.0)
    return {
        "holds": all(check.holds for check in checks),
        "checks": [check._asdict() for check in checks],
        "kills": {kind: asdict(cost) for kind, cost in costs(faults.kills)},
        "iterations": faults.iterations,
        "iterations_repeated": sum(kill.repeated or 0 for kill in faults.kills),
        "iterations_with_fewer_rollouts": sum(
            row.get("rollouts", full) < full for row in faults.rows
        ),
        "seconds": faults.seen[-1].second if faults.seen else None,
        "validation": final_validation(faults.rows),
        "undisturbed": {
            "iterations": len(faults.undisturbed) - 1,
            "seconds": faults.undisturbed_s,
            "validation": final_validation(faults.undisturbed),
            "equal_until": equal_until(faults.rows, faults.undisturbed),
        },
        "settings": dict(settings),
    }


@dataclass(frozen=True)
class Cost:
    """Consequences of all kills of a kind; seconds until the next iteration."""

    kills: int
    resumes: int
    iterations_repeated: int
    recovery_s_median: float | None
    recovery_s_max: float | None


def costs(kills: Sequence[Kill]) -> Iterator[tuple[Kind, Cost]]:
    for kind in KINDS:
        own = [kill for kill in kills if kill.kind == kind]
        times = [kill.recovery_s for kill in own if kill.recovery_s is not None]
        yield (
            kind,
            Cost(
                kills=len(own),
                resumes=sum(kill.resumes for kill in own),
                iterations_repeated=sum(kill.repeated or 0 for kill in own),
                recovery_s_median=statistics.median(times) if times else None,
                recovery_s_max=max(times, default=None),
            ),
        )


def write_faults(faults: Faults, settings: Mapping[str, Any], title: str, folder: Path) -> None:
    """Replace table, summary and chart atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_text_file(folder / TABLE) as file:
        table = pd.DataFrame([asdict(kill) for kill in faults.kills]).round(2)
        table.convert_dtypes().to_csv(file, index=False, lineterminator="\n")
    with atomic_text_file(folder / SUMMARY) as file:
        json.dump(summary_of(faults, settings), file, indent=2)
        file.write("\n")
    charts.save(folder / CHART, lambda: draw_faults(faults, title))


def draw_faults(faults: Faults, title: str) -> Figure:
    """Draw the recorded iterations and the live workers over time, and every kill."""
    figure = Figure(figsize=(10, 5.2), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
    progress, workers = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    minutes = [one.second / 60 for one in faults.seen]
    style = {"where": "post", "color": charts.LEARNED_COLOUR, "linewidth": 1.8}
    progress.step(minutes, [one.iteration for one in faults.seen], **style)
    workers.step(minutes, [one.workers for one in faults.seen], **style)
    for kind in KINDS:
        own = [kill for kill in faults.kills if kill.kind == kind]
        progress.scatter(
            [kill.second / 60 for kill in own],
            [kill.iteration for kill in own],
            color=COLOURS[kind],
            marker=MARKERS[kind],
            s=46,
            zorder=3,
            label=f"{kind} killed ({len(own)})",
        )
        for kill in own:
            workers.axvline(kill.second / 60, color=COLOURS[kind], linewidth=1, zorder=0)
    progress.set_title("Iterations recorded", loc="left", fontsize=11)
    progress.set(ylim=(0, None), ylabel="iteration")
    progress.legend(loc="upper left")
    workers.set_title("Rollout workers alive in the iteration", loc="left", fontsize=11)
    workers.set(ylim=(0, faults.workers + 0.5), xlabel="minutes", ylabel="workers")
    workers.set_yticks(range(faults.workers + 1))
    return figure
