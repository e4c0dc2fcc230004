"""Random states for property tests."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from loadmaster.serving.systems.das.schema import DasState

KINDS = ("V100", "P100", "T4", "H900")


@st.composite
def states(draw: st.DrawFn) -> DasState:
    """Running jobs are placed where they fit."""
    machines: list[dict[str, Any]] = []
    for place in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(KINDS))
        own = {"speed": 3.0, "price_per_hour": 9.0} if kind == "H900" else {}
        machines.append(
            {
                "name": f"m{place}",
                "gpus": draw(st.integers(1, 8)),
                "gpu": kind,
                "cpus": draw(st.sampled_from([2, 16, 64.5])),
                "rack": draw(st.sampled_from(["left", "right"])),
                **own,
            }
        )
    free = {m["name"]: [round(100 * m["gpus"]), round(100 * m["cpus"])] for m in machines}
    jobs = [_draw_job(draw, place, machines, free) for place in range(draw(st.integers(0, 12)))]
    names = st.sampled_from([m["name"] for m in machines])
    ages = sorted(draw(st.lists(st.floats(0, 4000), max_size=5)))
    speeds = st.dictionaries(names, st.floats(0, 3), max_size=4)
    return DasState.model_validate(
        {
            "machines": machines,
            "jobs": jobs,
            "history": [{"age_s": age, "speeds": draw(speeds)} for age in ages],
            "users": draw(st.sampled_from([{}, {"ann": {"jobs": 7, "mean_log_minutes": 3.1}}])),
            "backfill": draw(st.booleans()),
            "ask": draw(st.sampled_from(["event", "placing", "reconsidering", "placing again"])),
        }
    )


def _draw_job(
    draw: st.DrawFn, place: int, machines: list[dict[str, Any]], free: dict[str, list[int]]
) -> dict[str, Any]:
    gpu = draw(st.sampled_from([25, 50, 100, 150, 200, 800]))
    cpu = draw(st.sampled_from([0, 100, 450]))
    instances, kind = draw(st.integers(1, 5)), draw(st.sampled_from([None, None, None, *KINDS[:3]]))
    job: dict[str, Any] = {
        "id": str(place),
        "user": draw(st.sampled_from(["ann", "bob"])),
        "instances": instances,
        "gpus": gpu / 100,
        "cpus": cpu / 100,
        "gpu_type": kind,
        "communication": draw(st.sampled_from([0, 0.4])),
        "age_s": draw(st.floats(0, 1e6)),
        "ran_s": draw(st.sampled_from([0, 50.5, 1e5])),
    }
    if draw(st.booleans()):
        return job
    places = []
    for machine in machines:
        left_gpu, left_cpu = free[machine["name"]]
        if kind not in (None, machine["gpu"]):
            continue
        fit = min(instances, left_gpu // gpu, left_cpu // cpu if cpu else instances)
        if fit > 0:
            places.append({"machine": machine["name"], "instances": fit})
            instances -= fit
    if instances == 0:
        for one in places:
            free[one["machine"]][0] -= one["instances"] * gpu
            free[one["machine"]][1] -= one["instances"] * cpu
        job |= {"placements": places, "running_s": draw(st.floats(0, 1e5))}
        job["speed"] = draw(st.one_of(st.none(), st.floats(0, 4)))
    return job
