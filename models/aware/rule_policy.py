"""The rule that AWARE starts from as a policy of its own: it shows what training added."""

from loadmaster.envs.compiled import compiled
from loadmaster.envs.pod_scaling.episode import EpisodeResult, Setup
from loadmaster.envs.pod_scaling.episode_runner import EpisodeRunner
from loadmaster.envs.pod_scaling.settings import PodScalingSettings
from loadmaster.envs.pod_scaling.state import (
    HORIZON,
    NOW,
    Floats,
    SimConstants,
    SimState,
)
from loadmaster.models.aware.estimates import begin_episode, blank_application, new_estimates
from loadmaster.models.aware.plan_choice import Margins
from loadmaster.models.aware.rule import Scratch, carry_out, observe_step, plan_step, scratch
from loadmaster.models.aware.settings import RuleSettings

RULE = "aware-rule"


@compiled
def _run(
    constants: SimConstants,
    state: SimState,
    gain: float,
    margins: Margins,
    estimates: Floats,
    app: Floats,
    tables: Scratch,
) -> None:
    while state.clock[NOW] < state.clock[HORIZON]:
        observe_step(constants, state, gain, estimates, app, tables)
        plan_step(constants, state, margins, estimates, app, tables)
        carry_out(constants, state, tables.plan)


def run_rule(
    settings: PodScalingSettings,
    setup: Setup,
    seed: int,
    rule: RuleSettings | None = None,
    estimates: Floats | None = None,
) -> EpisodeResult:
    """Result of the episode of `seed`; `estimates` of the application are updated."""
    rule = rule or RuleSettings()
    runner = EpisodeRunner(settings, setup, seed)
    known = new_estimates() if estimates is None else estimates
    begin_episode(known)
    _run(
        setup.constants,
        runner.episode.state,
        rule.gain,
        Margins(*rule.margins),
        known,
        blank_application(),
        scratch(),
    )
    return runner.result(RULE)
