"""States for tests: records by hand, and random ones for property tests."""

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from loadmaster.serving.systems.das.schema import DasState

KINDS = ("V100", "P100", "T4", "H900")


Json = dict[str, Any]
On = dict[str, int]  # instances of a job by machine


def machine(name: str, gpus: int = 4, gpu: str = "V100", cpus: float = 32, **more: Any) -> Json:
    return {"name": name, "gpus": gpus, "gpu": gpu, "cpus": cpus, **more}


def job(name: str, gpus: float = 1, age_s: float = 60, on: On | None = None, **more: Any) -> Json:
    return {"id": name, "gpus": gpus, "age_s": age_s, "placements": placements(on or {}), **more}


def placements(on: On) -> list[Json]:
    return [{"machine": name, "instances": count} for name, count in on.items()]


@st.composite
def states(draw: st.DrawFn, corrections: Sequence[float | None] = (None, 0.0)) -> DasState:
    """Running jobs are placed where they fit. `corrections` are those of ranks."""
    machines: list[Json] = []
    for place in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(KINDS))
        own = {"speed": 3.0, "price_per_hour": 9.0} if kind == "H900" else {}
        gpus, cpus = draw(st.integers(1, 8)), draw(st.sampled_from([2, 16, 64.5]))
        rack = draw(st.sampled_from(["left", "right"]))
        machines.append(machine(f"m{place}", gpus, kind, cpus, rack=rack, **own))
    free = {m["name"]: [round(100 * m["gpus"]), round(100 * m["cpus"])] for m in machines}
    jobs = [_draw_job(draw, place, machines, free) for place in range(draw(st.integers(0, 12)))]
    names = st.sampled_from([m["name"] for m in machines])
    names_of_jobs = st.sampled_from([*(one["id"] for one in jobs), "finished"])
    rank = st.fixed_dictionaries(
        {"key": st.floats(0, 1e9), "correction": st.sampled_from(corrections)}
    )
    ages = sorted(draw(st.lists(st.floats(0, 4000), max_size=5)))
    speeds = st.dictionaries(names, st.floats(0, 3), max_size=4)
    return DasState.model_validate({
        "machines": machines, "jobs": jobs, "backfill": draw(st.booleans()),
        "history": [{"age_s": age, "speeds": draw(speeds)} for age in ages],
        "users": draw(st.sampled_from([{}, {"ann": {"jobs": 7, "mean_log_minutes": 3.1}}])),
        "all_users": draw(st.sampled_from([None, {"jobs": 90, "mean_log_minutes": 2.5}])),
        "ranks": draw(st.dictionaries(names_of_jobs, rank, max_size=8)),
        "ask": draw(st.sampled_from(["event", "placing", "reconsidering", "placing again"])),
    })  # fmt: skip


def _draw_job(draw: st.DrawFn, place: int, machines: list[Json], free: dict[str, Any]) -> Json:
    def one_of(*values: Any) -> Any:
        return draw(st.sampled_from(values))

    gpu, cpu = one_of(25, 50, 100, 150, 200, 800), one_of(0, 100, 450)
    kind, instances = one_of(None, None, None, *KINDS[:3]), draw(st.integers(1, 5))
    drawn = job(
        str(place), gpu / 100, draw(st.floats(0, 1e6)), user=one_of("ann", "bob"),
        instances=instances, cpus=cpu / 100, gpu_type=kind, communication=one_of(0, 0.4),
        ran_s=one_of(0, 50.5, 1e5),
    )  # fmt: skip
    if draw(st.booleans()):
        return drawn
    on: On = {}
    for one in machines:
        left_gpu, left_cpu = free[one["name"]]
        fit = min(instances, left_gpu // gpu, left_cpu // cpu if cpu else instances)
        if fit > 0 and kind in (None, one["gpu"]):
            on[one["name"]] = fit
            instances -= fit
    if instances == 0:
        for name, count in on.items():
            free[name][0] -= count * gpu
            free[name][1] -= count * cpu
        drawn |= {"placements": placements(on), "running_s": draw(st.floats(0, 1e5))}
        drawn["speed"] = draw(st.one_of(st.none(), st.floats(0, 4)))
    return drawn
