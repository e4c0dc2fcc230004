"""Calibration of novelty's limit: training applications, each compared with all the others.

`python -m loadmaster.models.aware.novelty_limit` prints the limit, in about a minute.
"""

import numpy as np

from loadmaster.envs.pod_scaling.applications import TRAIN, compose, generated_split
from loadmaster.envs.pod_scaling.episode import build_setup
from loadmaster.envs.pod_scaling.settings import PodScalingSettings
from loadmaster.models.aware.adaptation import FIRST_SEED, adapt_to
from loadmaster.models.aware.estimates import blank_application, write_application
from loadmaster.models.aware.novelty import estimated_coordinates, trained_applications
from loadmaster.models.aware.policy import AwarePolicy
from loadmaster.models.bundle import load_bundle
from loadmaster.models.manifest import pretrained_folder

APPLICATIONS = 200  # of the training set
QUANTILE = 0.97  # of the distances
LOADS = ("diurnal-like", "bursty-like")  # in turn
FIRST_LIMIT_SEED = FIRST_SEED + 1_000


def calibrate_limit(policy: AwarePolicy, applications: int = APPLICATIONS) -> float:
    """QUANTILE of the distances of applications that are adapted to in one episode each."""
    conditions = [PodScalingSettings(workload=load) for load in LOADS]
    setups = [build_setup(settings) for settings in conditions]
    known, app, distances = trained_applications(), blank_application(), []
    for number, segments in enumerate(generated_split(TRAIN)[:applications]):
        application, place = compose(segments), number % len(LOADS)
        alone = setups[place]._replace(applications=(application,))
        seeds = [FIRST_LIMIT_SEED + number]
        adapted, _ = adapt_to(policy, conditions[place], alone, seeds)
        write_application(adapted.known.estimates, application.slo_s, app)
        row = estimated_coordinates(app, adapted.known.estimates)
        distances.append(known.distance(row, without=number))
    return float(np.quantile(distances, QUANTILE))


if __name__ == "__main__":
    shipped = AwarePolicy.from_bundle(load_bundle(pretrained_folder() / "aware"))
    print(f"{calibrate_limit(shipped):.2f}")
