"""The load of the measurement, the paced times, and the figures of its rows."""

from dataclasses import replace

import pytest

from loadmaster.platform.bench.engines import flink as bench
from loadmaster.platform.bench.engines.flink import Profile, Row, figures, half_width, load_rate
from tests.platform.steering.flink.rest_server import FlinkServer

ROW = Row("daily", 0, "fixed", 11.0, 40.0, 6.0, 0.0, 0.0, 1.0, 0.0, 2, 0, 10, 0, 1.0)


@pytest.mark.parametrize("profile", bench.PROFILES)
def test_load_has_one_peak_and_is_that_of_the_repeat(profile: Profile) -> None:
    rate, other = load_rate(profile, 1), load_rate(profile, 2)
    low, rising, *_ = profile.minutes
    high = bench.WARM_UP_MIN + low + rising + 5
    expected = {5: profile.low, bench.WARM_UP_MIN: profile.low, high: profile.high}
    expected[profile.total_min - 5] = profile.low
    for minute, mean in expected.items():
        assert abs(rate(minute * bench.MINUTE_S) / mean - 1) <= bench.NOISE + 1e-9
    assert rate(10.0) == load_rate(profile, 1)(10.0) != other(10.0)


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
    assert found["flink/daily/sure/instance_hours"] == 22.0
    assert found["flink/daily/sure-fixed/instance_hours"] == pytest.approx(-18.5)
    assert found["flink/daily/sure-fixed/instance_hours_half_width"] == pytest.approx(
        12.706 * 1.5, 1e-3
    )
    assert half_width([1.0]) != half_width([1.0])
