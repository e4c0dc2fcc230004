"""The rule that SURE starts from as a policy of its own, and the same with the coming load known.

Beside the trained policy, the first shows what training added. The second is an oracle: what the
best forecast of an hour would be worth.
"""

import numpy as np

from loadmaster.envs.stream_scaling.actions import ACT, HOLD
from loadmaster.envs.stream_scaling.episode import EpisodeResult, Setup
from loadmaster.envs.stream_scaling.episode_runner import EpisodeRunner
from loadmaster.envs.stream_scaling.settings import WARM_UP_MIN, StreamScalingSettings
from loadmaster.models.sure.prior import recommend_one
from loadmaster.models.sure.settings import PriorSettings

RULE, FORESIGHT = "sure-rule", "sure-rule-foresight"
FORESIGHT_MIN = 60  # of the load whose mean is known


def run_rule(
    settings: StreamScalingSettings,
    setup: Setup,
    seed: int,
    *,
    foresight: bool = False,
    record: bool = False,
) -> EpisodeResult:
    """Result of the episode of `seed`, by the rule's default parameters."""
    settings = settings.at_published_pace()
    runner, prior = EpisodeRunner(settings, setup, seed, record), PriorSettings()
    load = runner.episode.state.load.sum(axis=0)
    while not runner.over:
        begin = WARM_UP_MIN + runner.minute
        forecast = float(load[begin : begin + FORESIGHT_MIN].mean()) if foresight else 0.0
        found = recommend_one(runner.view._asdict(), prior, settings, forecast)
        gate = ACT if found.gate > 0 else HOLD
        runner.decide(np.concatenate([[gate], found.change]).astype(np.float32))
    return runner.result(FORESIGHT if foresight else RULE)
