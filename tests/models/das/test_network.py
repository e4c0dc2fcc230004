"""Both agents and their critic: dependencies, densities and gradients in the four variants."""

import math
import time

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal

from loadmaster.envs.errors import InputError
from loadmaster.envs.gpu_scheduling import features
from loadmaster.envs.settings import build_settings
from loadmaster.models.das.heuristic_init import COST, PACE, pair_features
from loadmaster.models.das.network import OF_JOBS, ActionDistribution, Actions, Critic, DasNetwork
from loadmaster.models.das.ordering import BATCH
from loadmaster.models.das.settings import DasSettings
from tests.models.das.builders import VARIANTS, Batch, covariance, module_of, observations, one_of

EXTREMES = ["DA", "DAS"]  # without and with gate and process
WAITING = [7, 3, 1, 0]
MANY = [(5 * number) % 8 for number in range(3 * BATCH // 2)]  # split by length


def network_of(variant: str) -> DasNetwork:
    network = module_of(0.5, **VARIANTS[variant]).network
    torch.nn.init.normal_(network.placement.of_pair.weight)
    return network


@torch.no_grad()
def distribution(variant: str, observation: Batch) -> ActionDistribution:
    found: ActionDistribution = network_of(variant)(observation)
    return found


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def sample(found: ActionDistribution, seed: int = 0) -> Actions:
    shape = found.placements.fits.shape
    return found.sample(Actions(normal(*shape[:2], seed=seed), normal(*shape, seed=seed)))


def with_machines(batch: Batch, order: Tensor) -> Batch:
    """The same observations with reordered machines."""
    tables = ("held", "history_y", "history_mask")
    reordered = {name: batch[name][..., order] for name in tables}
    machines = {"machines": batch["machines"][:, order], "rack": batch["rack"][order]}
    return batch | reordered | machines


@pytest.mark.parametrize(("variant", "waiting"), [("DA", WAITING), ("DAS", WAITING), ("DAS", MANY)])
def test_padding_and_other_rows_have_no_effect(variant: str, waiting: list[int]) -> None:
    observation = observations(waiting)
    many = distribution(variant, observation)
    assert torch.isfinite(many.priorities.mean).all()
    actions, close = sample(many), {"rtol": 1e-4, "atol": 1e-5}
    for row in range(0, len(waiting), 1 + len(waiting) // 18):
        jobs = max(1, waiting[row])
        one = distribution(variant, one_of(observation, row, jobs))
        for found, expected in zip(many.mean(), one.mean(), strict=True):
            torch.testing.assert_close(found[row, :jobs], expected[0], **close)
        own = Actions(*(table[row : row + 1, :jobs] for table in actions))
        torch.testing.assert_close(many.log_prob(actions)[row], one.log_prob(own)[0], **close)
        torch.testing.assert_close(many.entropy()[row], one.entropy()[0], **close)


@pytest.mark.parametrize("variant", EXTREMES)
def test_gaps_in_queue_have_no_effect(variant: str) -> None:
    """The position of a job is counted among jobs, not rows."""
    observation, rows = observations([3]), torch.tensor([0, 2, 5])
    spread = dict(observation)
    for name in OF_JOBS:
        spread[name] = torch.zeros_like(observation[name])
        spread[name][:, rows] = observation[name][:, :3]
    near, far = (distribution(variant, one).priorities.mean for one in (observation, spread))
    torch.testing.assert_close(near[:, :3], far[:, rows], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("variant", EXTREMES)
def test_order_of_machines_has_no_effect(variant: str) -> None:
    observation, order = observations(WAITING), torch.tensor([4, 2, 0, 5, 1, 3])
    one = distribution(variant, observation)
    other = distribution(variant, with_machines(observation, order))
    actions, close = sample(one), {"rtol": 1e-4, "atol": 1e-4}
    reordered = actions._replace(affinity=actions.affinity[..., order])
    torch.testing.assert_close(one.mean().priority, other.mean().priority, **close)
    torch.testing.assert_close(one.mean().affinity[..., order], other.mean().affinity, **close)
    torch.testing.assert_close(one.log_prob(actions), other.log_prob(reordered), **close)


def test_order_of_arrival_has_an_effect() -> None:
    observation, order = observations([4]), torch.tensor([1, 0, 2, 3, 4, 5, 6])
    swapped = dict(observation, jobs=observation["jobs"][:, order])
    one, other = (distribution("DAS", each).mean().priority[0] for each in (observation, swapped))
    assert (one[0] - other[1]).abs() > 1e-3


@pytest.mark.parametrize(
    ("variant", "table", "action", "depends"),
    [
        ("DA", "machines", "priority", False),
        ("DA+MC", "machines", "priority", True),  # by the gate
        ("DA", "history_y", "affinity", False),
        ("DAS", "history_y", "affinity", True),  # by the process
    ],
)
def test_actions_depend_on_machines_and_history_by_their_parts(
    variant: str, table: str, action: str, depends: bool
) -> None:
    observation = observations([4])
    changed = {**observation, table: observation[table] + 1}
    means = (distribution(variant, each).mean() for each in (observation, changed))
    one, other = (getattr(mean, action) for mean in means)
    assert torch.equal(one, other) != depends


def test_densities_equal_independent_normals() -> None:
    found, placements = distribution("DA", observations(WAITING))
    standard = normal(4, 7, seed=2)
    drawn, expected = found.sample(standard), Normal(found.mean, found.log_std.exp())
    likely = torch.where(found.mask, expected.log_prob(drawn), 0).sum(1)
    torch.testing.assert_close(found.log_prob(drawn), likely)
    entropy = torch.where(found.mask, expected.entropy(), 0).sum(1)
    torch.testing.assert_close(found.entropy(), entropy)
    scaled = torch.where(found.mask, found.mean + found.log_std.exp() * standard, 0)
    torch.testing.assert_close(drawn, scaled)
    assert likely[3] == 0  # no job waits
    own = placements.affinities
    standard = normal(*own.mean.shape)
    drawn, expected = own.sample(standard), Normal(own.mean, own.std)
    torch.testing.assert_close(drawn, own.mean + own.std * standard)
    torch.testing.assert_close(own.log_prob(drawn), expected.log_prob(drawn).sum(-1))
    torch.testing.assert_close(own.entropy(), expected.entropy().sum(-1))


@pytest.mark.parametrize("variant", EXTREMES)
def test_affinities_of_jobs_that_fit_to_all_machines_have_a_density(variant: str) -> None:
    observation = observations(WAITING)
    observation["held"][0, 2] = 0  # fits nowhere
    observation["held"][1] = 0  # full cluster
    found = distribution(variant, observation).placements
    drawn = found.sample(normal(4, 7, 6))
    able = ((observation["held"] > 0) & observation["job_mask"].unsqueeze(-1)).any(-1)
    assert not able[0, 2]
    assert (drawn.abs().sum(-1) > 0).equal(able)
    assert found.log_prob(drawn)[[1, 3]].tolist() == found.entropy()[[1, 3]].tolist() == [0, 0]
    owner, row = found.owner[0], found.row[0]
    elsewhere = (~found.fits[owner, row]).nonzero()[0]
    moved = drawn.clone()
    moved[owner, row, elsewhere] += 1
    assert found.log_prob(moved)[owner] != found.log_prob(drawn)[owner]


def test_process_correlates_machines() -> None:
    observation = observations([2])
    observation["history_mask"][:] = False
    between = covariance(distribution("DAS", observation).placements.affinities)[0]
    assert (between - torch.diag(between.diagonal())).abs().max() > 0.05 * between.max()


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_parameter_has_a_gradient(variant: str) -> None:
    network = network_of(variant)
    found = network(observations(WAITING))
    weights = torch.tensor([[1.0], [-2], [3], [1]])
    ((found.log_prob(sample(found)) + found.entropy()) * weights).sum().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.any(), name


@pytest.mark.parametrize("machines", [1, 8, 300])
def test_network_runs_on_any_number_of_machines(machines: int) -> None:
    network, observation = network_of("DAS"), observations([5, 2], machines=machines)
    with torch.no_grad():
        acting = network(observation)
    actions = sample(acting)
    log_prob = network(observation).log_prob(actions)
    torch.testing.assert_close(log_prob, acting.log_prob(actions), rtol=1e-5, atol=1e-3)
    log_prob.sum().backward()
    assert all(one.grad is None or torch.isfinite(one.grad).all() for one in network.parameters())


def test_decision_on_800_machines_takes_less_than_50_ms() -> None:
    network, observation = network_of("DAS"), observations([8], machines=800, queue=8)
    spent = []
    for _ in range(8):
        start = time.thread_time()
        network.mean_actions(observation)
        spent.append(time.thread_time() - start)
    assert min(spent) < 0.05


@pytest.mark.parametrize("variant", VARIANTS)
def test_gradient_steps_raise_log_prob(variant: str) -> None:
    """Of arbitrary actions, from the initial weights."""
    network, observation = module_of(0, **VARIANTS[variant]).network, observations(WAITING)
    actions = sample(network(observation), seed=5)
    optimiser = torch.optim.Adam(network.parameters(), lr=3e-3)
    seen = []
    for _ in range(30):
        log_prob = network(observation).log_prob(actions).sum(0)
        seen.append(log_prob.detach())
        optimiser.zero_grad()
        (-log_prob.sum()).backward()
        optimiser.step()
    assert (seen[-1] > seen[0] + torch.tensor([1, 5])).all()


def test_means_are_the_mode() -> None:
    observation = observations(WAITING)
    found = distribution("DAS", observation)
    best = found.log_prob(network_of("DAS").mean_actions(observation))
    for seed in range(5):
        log_prob = found.log_prob(sample(found, seed))
        assert (log_prob[:3] < best[:3]).all()  # no job waits in the last


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"walk": 1.0}, "setting walk: .* less than 1"),
        ({"heads": 5}, "heads=5"),
        ({"cross_rack": 0.9}, "cross_rack=0.9"),
        ({"noise": 0}, "setting noise: .* greater than 0"),
        ({"comunicate": True}, "did you mean 'communicate'"),
    ],
)
def test_invalid_settings_raise(values: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_settings(DasSettings, values)


def critic_of(sees_actions: bool) -> Critic:
    torch.manual_seed(4)
    return Critic(DasSettings(), sees_actions)


ACTIONS = Actions(normal(4, 7, seed=3), normal(4, 7, 6, seed=4))


@pytest.mark.parametrize("sees_actions", [False, True], ids=["V", "Q"])
def test_critic_ignores_padding_and_order(sees_actions: bool) -> None:
    critic, observation = critic_of(sees_actions), observations(WAITING)
    value = critic(observation, ACTIONS)
    assert len(set(value.tolist())) == 4
    order = torch.tensor([4, 2, 0, 5, 1, 3])
    turned = ACTIONS._replace(affinity=ACTIONS.affinity[..., order])
    torch.testing.assert_close(critic(with_machines(observation, order), turned), value)
    for number, jobs in enumerate(WAITING[:3]):
        own = Actions(*(table[number : number + 1, :jobs] for table in ACTIONS))
        torch.testing.assert_close(critic(one_of(observation, number, jobs), own)[0], value[number])
    queue = torch.tensor([6, 2, 1, 0, 4, 3, 5])
    shuffled = {name: observation[name][:, queue] for name in OF_JOBS}
    moved = Actions(*(table[:, queue] for table in ACTIONS))
    torch.testing.assert_close(critic({**observation, **shuffled}, moved), value)


def test_only_q_depends_on_actions() -> None:
    observation = observations(WAITING)
    fits = (observation["held"] > 0) & observation["job_mask"].unsqueeze(-1)
    unusable, placed = (
        ACTIONS._replace(affinity=ACTIONS.affinity + where.float()) for where in (~fits, fits)
    )
    ranked = ACTIONS._replace(priority=ACTIONS.priority + 1)
    q, v = critic_of(True), critic_of(False)
    value = q(observation, ACTIONS)
    assert torch.equal(q(observation, unusable), value)  # no effect where a job does not fit
    for other in (placed, ranked):
        assert (q(observation, other) != value).tolist() == [True, True, True, False]
        assert torch.equal(v(observation, other), v(observation))
    with pytest.raises(ValueError, match="actions"):
        q(observation)


# (dollars an hour, speed): a V100, one at half its speed and price, one with speed 0.
PRICE_AND_SPEED = [(2.0, 1.0), (1.0, 0.5), (2.0, 0.0)]


def pair_features_of(ran: float, user_run: float, gang: int = 4, gpus: float = 2.0) -> Tensor:
    """(3, PAIR_FEATURES) of one job on each of those machines; minutes."""
    job, machines = (
        torch.zeros(1, features.JOB_FEATURES),
        torch.zeros(1, 3, features.MACHINE_FEATURES),
    )
    job[0, features.INSTANCES], job[0, features.GPUS] = math.log(gang), math.log1p(gpus)
    job[0, features.RAN], job[0, features.USER_RUN] = math.log1p(ran), math.log1p(user_run)
    machines[0, :, [features.PRICE, features.SPEED]] = torch.tensor(PRICE_AND_SPEED)
    nothing = torch.zeros(1, 3)
    return pair_features(job, machines, nothing, nothing, torch.arange(3).unsqueeze(0))[0]


def test_cost_of_a_second_of_work() -> None:
    """(1 + dollars / 2) / speed."""
    eight = pair_features_of(ran=5, user_run=0)[:, COST]
    expected = [math.log(1 + 16 / 2), math.log((1 + 8 / 2) / 0.5), math.log((1 + 16 / 2) / 1e-3)]
    assert eight.tolist() == pytest.approx(expected)
    half = pair_features_of(ran=5, user_run=0, gang=1, gpus=0.5)[:, COST]
    assert half[:2].tolist() == pytest.approx([math.log(1.5), math.log(1.25 / 0.5)])


def test_pace_favours_fast_machines_for_long_jobs() -> None:
    """log(speed) * (log(minutes) - 3)."""
    for ran, user_run, longest in ((99, 0, 99), (0, 999, 999), (40, 7, 40), (2, 1, 2)):
        pace = pair_features_of(ran, user_run)[:, PACE]
        beyond = math.log(1 + longest) - 3
        expected = [0, math.log(0.5) * beyond, math.log(1e-3) * beyond]
        assert pace.tolist() == pytest.approx(expected, rel=1e-5, abs=1e-6)
    long, short = pair_features_of(999, 0)[:, PACE], pair_features_of(2, 0)[:, PACE]
    assert long[1] < long[0]
    assert short[1] > short[0]
