"""The load of the measurement, the paced times, and the figures of its rows."""

from dataclasses import replace

import pytest

from loadmaster.platform.bench.engines import flink as bench
from loadmaster.platform.bench.engines.flink import Row, figures, half_width, load_rate
from tests.platform.steering.flink.rest_server import FlinkServer

ROW = Row(0, "fixed", 11.0, 40.0, 6.0, 0.0, 0.0, 1.0, 0.0, 2, 0, 10, 0, 1.0)


def test_load_has_one_peak_and_is_that_of_the_repeat() -> None:
    rate, other = load_rate(1), load_rate(2)
    begin = bench.WARM_UP_MIN
    rising = begin + bench.PHASES_MIN[0]
    high = rising + bench.PHASES_MIN[1] + 5
    at = [rate(minute * bench.MINUTE_S) for minute in (5, begin, high, begin + 265)]
    for value, mean in zip(at, (200, 200, 1200, 200), strict=True):
        assert abs(value / mean - 1) <= bench.NOISE + 1e-9
    assert rate(10.0) == load_rate(1)(10.0) != other(10.0)


def test_paced_times(flink: FlinkServer, url: str) -> None:
    origin = flink.now_s - 100
    client = bench.PacedClient(url, origin)
    flink.started_s = flink.now_s - 10
    found = client.job(flink.job_id)
    assert found["now"] == pytest.approx(1000 * (origin + 100 * bench.PACE), abs=100)
    start = found["vertices"][0]["start-time"]
    assert start == pytest.approx(1000 * (origin + 90 * bench.PACE), abs=100)
    assert found["vertices"][0]["tasks"]["RUNNING"] == 1
    flink.started_s = flink.now_s - 1
    assert client.job(flink.job_id)["vertices"][0]["tasks"] == {}
    client.close()


def test_figures_are_paired() -> None:
    rows = []
    for repeat, sure in enumerate((20.0, 24.0)):
        for arm, hours in (("fixed", 40.0 + repeat), ("flink", 30.0), ("sure", sure)):
            rows.append(replace(ROW, repeat=repeat, arm=arm, instance_hours=hours))
    found = {one.name: one.value for one in figures(rows)}
    assert found["flink/sure/instance_hours"] == 22.0
    assert found["flink/sure-fixed/instance_hours"] == pytest.approx(-18.5)
    assert found["flink/sure-fixed/instance_hours_half_width"] == pytest.approx(12.706 * 1.5, 1e-3)
    assert half_width([1.0]) != half_width([1.0])
