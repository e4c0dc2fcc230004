"""The load of the measurement, the paced times, the parts of the lag, and the figures."""

from dataclasses import replace

import numpy as np
import pytest

from loadmaster.platform.bench.engines import flink_load as bench
from loadmaster.platform.bench.engines.flink import SECONDS, Row, figures, half_width
from loadmaster.platform.bench.engines.flink_lag import Timeline, lag_row, minute_rows, queue_lag
from loadmaster.platform.bench.engines.flink_load import ARMS, SLOW, STEEP, Profile, load_rate
from tests.platform.steering.flink.rest_server import COUNTED, SOURCE, FlinkServer

ROW = Row("daily", 0, "fixed", 11.0, 40.0, 6.0, 0.0, 0.0, 1.0, 0.0, 2, 0, 10, 0, 1.0)


@pytest.mark.parametrize("profile", bench.PROFILES)
def test_load_has_one_peak_and_is_that_of_the_repeat(profile: Profile) -> None:
    rate, other = load_rate(profile, 1), load_rate(profile, 2)
    low, rising, *_ = profile.minutes
    high = bench.WARM_UP_MIN + low + rising + 5
    expected = {5: profile.low, bench.WARM_UP_MIN: profile.low, high: profile.high}
    expected[profile.total_min - 5] = profile.low
    for minute, mean in expected.items():
        assert abs(rate(minute * profile.minute_s) / mean - 1) <= bench.NOISE + 1e-9
    assert rate(10.0) == load_rate(profile, 1)(10.0) != other(10.0)


def test_the_same_load_comes_at_either_pace() -> None:
    for minute in (10, 120, 200):
        moments = (minute * profile.minute_s for profile in (STEEP, SLOW))
        assert load_rate(STEEP, 3)(next(moments)) == load_rate(SLOW, 3)(next(moments))


def test_paced_times(flink: FlinkServer, url: str) -> None:
    origin = flink.now_s - 100
    client = bench.PacedClient(url, origin, 30.0)
    flink.started_s = flink.now_s - 10
    found = client.job(flink.job_id)
    assert found["now"] == pytest.approx(1000 * (origin + 100 * 30.0), abs=100)
    start = found["vertices"][0]["start-time"]
    assert start == pytest.approx(1000 * (origin + 90 * 30.0), abs=100)
    assert found["vertices"][0]["tasks"]["RUNNING"] == 1
    flink.started_s = flink.now_s - 1
    assert client.job(flink.job_id)["vertices"][0]["tasks"] == {}
    client.close()


def test_counted_times_are_paced(flink: FlinkServer, url: str) -> None:
    client = bench.PacedClient(url, flink.now_s, 10.0)
    flink.vertex_metrics = True
    metrics = client.job(flink.job_id)["vertices"][0]["metrics"]
    own = sum(flink.counters[SOURCE][name] for name in COUNTED)
    assert sum(metrics.values()) == pytest.approx(10.0 * own)
    client.close()


def test_figures_are_paired() -> None:
    rows = []
    for repeat, sure in enumerate((20.0, 24.0)):
        hours = {"fixed": 40.0 + repeat, "fixed-mean": 30.0, "flink": 30.0, "sure": sure}
        rows += [
            replace(ROW, repeat=repeat, arm=arm, instance_hours=hours.get(arm, sure + 1))
            for arm in ARMS
        ]
    found = {one.name: one.value for one in figures(rows, ARMS)}
    assert found["flink/daily/sure/instance_hours"] == 22.0
    assert found["flink/daily/sure less fixed/instance_hours"] == pytest.approx(-18.5)
    assert found["flink/daily/sure less fixed/instance_hours_half_width"] == pytest.approx(
        12.706 * 1.5, 1e-3
    )
    assert found["flink/daily/sure-floor less sure/instance_hours"] == pytest.approx(1.0)
    assert half_width([1.0]) != half_width([1.0])
    some = {one.name for one in figures([row for row in rows if row.arm in SLOW.arms], SLOW.arms)}
    assert "flink/daily/sure-floor less flink/mean_lag_s" in some
    assert {name for name in found if "fixed-mean" in name or "sure/" in name} & some == set()


def test_lag_of_a_queue() -> None:
    times = np.arange(0.0, 101.0)
    due = 100.0 * times
    assert queue_lag(times, due, np.full(101, 200.0)) == pytest.approx(0.0, abs=1e-6)
    behind = queue_lag(times, due, np.where(times < 50, 80.0, 200.0))
    assert behind[50] == pytest.approx(10.0)  # 80 of 100 records a second for 50 s
    assert behind[60] == pytest.approx(0.0, abs=1e-6)


def test_parts_of_the_lag() -> None:
    """A plan that is recommended 10 s before it runs, and a pause of which 2 s of lag are left."""
    times = np.arange(0.0, 200.0, 0.5)
    small, large = {"parse": 1, "enrich": 1}, {"parse": 4, "enrich": 2}  # 250 and 1,000 records/s
    due = 300.0 * times
    ran = [small if at < 60 else large for at in times]
    short = queue_lag(times, due, np.where(times < 60, 250.0, 1000.0))
    timeline = Timeline(
        times=times.tolist(),
        due=due.astype(int).tolist(),
        lag_s=(30 * short + 5.0 + 2.0).tolist(),
        plans=ran,
        steps=[(0.0, small), (50.0, large)],
    )
    row = lag_row(("steep", 0, "sure"), timeline, 0.0, 5.0, SECONDS, 30.0, 2)
    assert row.rescales_s == pytest.approx(2.0, abs=0.01)
    assert row.seconds_a_rescale == pytest.approx(2.0 * 199.5 / 2 / 2, rel=0.01)
    assert row.recommended_s > row.late_s > 0
    parts = row.base_s + row.recommended_s + row.late_s + row.rescales_s
    assert parts == pytest.approx(row.mean_lag_s)
    assert row.short_min == pytest.approx(30.0, abs=1.0)
    minutes = minute_rows(("steep", 0, "sure"), timeline, 100.0, 2.0)
    assert len(minutes) == 50
    assert minutes[0]["records_per_s"] == pytest.approx(300.0, abs=1.0)
    assert (minutes[0]["parse"], minutes[0]["enrich"]) == (4, 2)
