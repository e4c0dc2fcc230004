"""Novelty of applications: distances, coordinates not estimated yet, and notes of the policy."""

from dataclasses import replace

import numpy as np
import pytest

from loadmaster.envs.errors import InputError
from loadmaster.envs.pod_scaling.applications import TEST, TRAIN, compose, generated_split
from loadmaster.envs.pod_scaling.episode import build_setup
from loadmaster.envs.pod_scaling.episode_runner import EpisodeRunner
from loadmaster.envs.pod_scaling.settings import PodScalingSettings
from loadmaster.envs.pod_scaling.state import app_row
from loadmaster.models.aware.estimates import IO_SEEN, REQUESTS, STEPS, W, new_estimates
from loadmaster.models.aware.novelty import (
    LEAST_LATENCIES,
    LEAST_REPORTS,
    LEAST_STEPS,
    LIMIT,
    KnownApplications,
    Novelty,
    coordinates,
    estimated_coordinates,
    trained_applications,
)
from loadmaster.models.aware.novelty_limit import calibrate_limit
from loadmaster.models.aware.policy import AwarePolicy
from loadmaster.models.aware.rule import carry_out
from tests.models.aware.parts import network_of, policy_of

HEAVY = replace(compose(["matMul", "mlServe", "webServe", "sleep"]), cpu_s=1.4)


def test_distances_are_mahalanobis_distances_to_the_nearest() -> None:
    apps = [compose(segments) for segments in generated_split(TRAIN)[:60]]
    rows = np.array([coordinates(np.array(app_row(app))) for app in apps])
    inverse = np.linalg.inv(np.cov(rows, rowvar=False))
    off = coordinates(np.array(app_row(HEAVY))) - rows
    expected = np.sqrt(np.einsum("ni,ij,nj->n", off, inverse, off).min())
    known = KnownApplications(apps)
    assert known.distance(coordinates(np.array(app_row(HEAVY)))) == pytest.approx(expected)
    assert known.distance(rows[7]) == pytest.approx(0, abs=1e-6)
    assert known.distance(rows[7], without=7) > 0.01


def test_a_coordinate_that_was_not_estimated_counts_as_the_mean() -> None:
    estimates, app = new_estimates(), np.array(app_row(HEAVY))
    assert np.isnan(estimated_coordinates(app, estimates)).all()
    estimates[REQUESTS] = 1.0
    assert np.isnan(estimated_coordinates(app, estimates)).tolist() == [0, 1, 0, 1, 1]
    estimates[[IO_SEEN, W]] = LEAST_LATENCIES, LEAST_REPORTS
    np.testing.assert_array_equal(estimated_coordinates(app, estimates), coordinates(app))
    known = trained_applications()
    assert known.distance(np.full(5, np.nan)) < LIMIT
    assert known.compare(app, estimates) is None
    estimates[STEPS] = LEAST_STEPS
    assert known.compare(app, estimates) == Novelty(known.distance(coordinates(app)))


def test_applications_of_the_training_are_known_and_heavier_ones_are_not() -> None:
    known = trained_applications()

    def share_unknown(segments: list[tuple[str, ...]], factor: float) -> float:
        apps = [compose(each) for each in segments]
        apps = [replace(app, cpu_s=factor * app.cpu_s) for app in apps]
        rows = [coordinates(np.array(app_row(app))) for app in apps]
        return float(np.mean([Novelty(known.distance(row)).is_unknown for row in rows]))

    assert share_unknown(list(generated_split(TRAIN)), 1.0) == 0
    assert share_unknown(list(generated_split(TEST)), 1.0) < 0.1
    assert share_unknown(list(generated_split(TEST)), 5.0) > 0.9


def test_few_applications_are_refused() -> None:
    with pytest.raises(InputError, match="5 known applications"):
        KnownApplications(map(compose, generated_split(TRAIN)[:5]))


def decisions_of(policy: AwarePolicy, segments: str) -> list[tuple[str, bool]]:
    """Of an episode by `decide`: the note, and whether the reason has it."""
    settings = PodScalingSettings(application="webServe", steps=20)
    setup = build_setup(settings)
    app = HEAVY if segments == HEAVY.name else compose(segments.split("+"))
    setup = setup._replace(applications=(app,))
    runner, memory, found = EpisodeRunner(settings, setup, 3), None, []
    while not runner.over:
        served = policy.decide(setup.constants, runner.episode.state, memory)
        memory = served.memory
        found.append(
            (served.unknown, bool(served.unknown) and served.unknown in served.reason.notes)
        )
        carry_out(setup.constants, runner.episode.state, served.plan)
    return found


def test_decisions_about_unknown_applications_have_a_note() -> None:
    policy = policy_of(size=0)
    assert not any(unknown for unknown, _ in decisions_of(policy, "webServe"))
    found = decisions_of(policy, HEAVY.name)
    assert not found[0][0]
    assert all(noted for _, noted in found[LEAST_STEPS:])


def test_a_policy_trained_on_one_application_compares_none() -> None:
    policy = AwarePolicy(network_of(size=0), PodScalingSettings(application="webServe"))
    assert not any(unknown for unknown, _ in decisions_of(policy, HEAVY.name))


def test_the_limit_is_a_distance_of_held_out_applications() -> None:
    assert 0.1 < calibrate_limit(policy_of(size=0), applications=4) < 3 * LIMIT
