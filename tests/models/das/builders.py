"""Small inputs of the random-walk process and of the whole network, and the dense process."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from loadmaster.envs.gpu_scheduling.features import JOB_FEATURES, MACHINE_FEATURES
from loadmaster.models.das.gaussian_process import (
    History,
    ProcessAffinities,
    RandomWalkProcess,
    read_history,
)
from loadmaster.models.das.module import DasModule
from loadmaster.models.das.network import OF_JOBS, DasNetwork
from loadmaster.models.das.settings import DasSettings

JOBS = 3


class ProcessInputs(NamedTuple):
    """Arguments of RandomWalkProcess."""

    prior: Tensor  # (N, M)
    usual: Tensor  # (N, M)
    log_amplitude: Tensor  # (N,)
    kinds: Tensor  # (N, M, D)
    rack: Tensor  # (N, M)
    history: History
    owner: Tensor  # (N,): one history each


def process_inputs(machines: int, seed: int = 0, like: bool = False, tau: int = 5) -> ProcessInputs:
    """`like`: machines of three kinds only, so that eigenvalues coincide."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    kinds = normal(JOBS, machines, 4)
    observed = torch.rand(JOBS, tau, machines, generator=generator) < 0.6
    rack = (torch.arange(machines) * 2 // machines).expand(JOBS, -1)
    if like:
        kinds = kinds[:, :3].repeat(1, machines // 3 + 1, 1)[:, :machines]
        observed = torch.ones_like(observed)
        observed[:, :, ::4] = False
        rack = torch.zeros_like(rack)
    age = torch.rand(JOBS, tau, generator=generator, dtype=torch.float64) * 900
    history = read_history(normal(JOBS, tau, machines).abs(), observed, age, tau)
    prior, amplitude = normal(JOBS, machines), normal(JOBS) / 3
    usual = normal(JOBS, machines).abs()
    return ProcessInputs(prior, usual, amplitude, kinds, rack, history, torch.arange(JOBS))


def process_of(**settings: Any) -> RandomWalkProcess:
    """With less noise than a new network has, and a gain other than 1."""
    values = {"noise": 0.01, "gain": 1.7, **settings}
    return RandomWalkProcess(DasSettings.model_validate(values)).double()


def leaves(inputs: ProcessInputs, process: RandomWalkProcess) -> list[Tensor]:
    """All tensors with a gradient."""
    own = [inputs.prior, inputs.usual, inputs.log_amplitude, inputs.kinds]
    return [*(one.requires_grad_() for one in own), *process.parameters()]


def affinities(machines: int) -> Tensor:
    generator = torch.Generator().manual_seed(9)
    return torch.randn(JOBS, machines, generator=generator, dtype=torch.float64)


@torch.no_grad()
def covariance(found: ProcessAffinities) -> Tensor:
    """(N, M, M) from `sample`, which is linear."""
    jobs, machines = found.mean.shape
    eye = torch.eye(machines, dtype=torch.float64)
    columns = [found.sample(one.expand(jobs, -1)) - found.mean for one in eye]
    factor = torch.stack(columns, dim=2)
    return factor @ factor.mT


def dense_kernel(adjacency: Tensor, walk: float) -> Tensor:
    """(M, M): (I - walk D^-1/2 A D^-1/2)^-1, scaled to a diagonal of 1."""
    degree = adjacency.sum(1)
    step = adjacency / (degree[:, None] * degree[None, :]).sqrt()
    kernel = torch.linalg.inv(torch.eye(len(step), dtype=step.dtype) - walk * step)
    scale = kernel.diagonal().sqrt()
    return kernel / (scale[:, None] * scale[None, :])


def kernel_of_job(inputs: ProcessInputs, process: RandomWalkProcess, job: int) -> Tensor:
    """(M, M): the dense kernel of A_kl = E_kl exp(-|phi_k - phi_l|^2 / 2l^2)."""
    settings, kinds, rack = process.settings, inputs.kinds[job], inputs.rack[job]
    shared = (rack[:, None] == rack[None, :]).double()
    tie = settings.cross_rack + (settings.same_rack - settings.cross_rack) * shared
    tie.fill_diagonal_(1.0)
    apart = (kinds[:, None] - kinds[None, :]).square().sum(-1)
    adjacency = tie * torch.exp(-apart / (2 * process.log_length.exp() ** 2))
    return dense_kernel(adjacency, settings.walk)


def dense_posterior(
    inputs: ProcessInputs, kernel: Tensor, process: RandomWalkProcess, job: int
) -> MultivariateNormal:
    """Of one job, from the (tau M) x (tau M) covariance of the observations."""
    history = inputs.history
    row, share, gap = history.row[job], history.share[job], history.gap[job]
    age = gap.flip(0).cumsum(0).flip(0)  # (T,)
    memory = process.log_memory.exp()
    in_time = torch.exp(-(age[:, None] - age[None, :]).abs() / memory)
    to_now = torch.exp(-age / memory)
    precision = (row[:, None] * share[None, :]).flatten()
    seen = precision > 0
    kernel = kernel.contiguous()
    among = torch.kron(in_time, kernel)[seen][:, seen]
    among = among + torch.diag(process.log_noise.exp() / precision[seen])
    cross = torch.kron(to_now[None, :], kernel)[:, seen]  # (M, observations)
    residual = (history.speed[job] - inputs.usual[job]).flatten()[seen]
    weights = torch.linalg.solve(among, cross.T).T
    mean = inputs.prior[job] + process.log_gain.exp() * (weights @ residual)
    covariance = (kernel - weights @ cross.T) * torch.exp(2 * inputs.log_amplitude[job])
    return MultivariateNormal(mean, (covariance + covariance.T) / 2)


VARIANTS: dict[str, dict[str, Any]] = {
    "DA": {"communicate": False, "process": False},
    "DA+MC": {"process": False},
    "DA+RWGP": {"communicate": False},
    "DAS": {},
}
NETWORK = {"width": 16, "heads": 2, "layers": 1}
Batch = dict[str, Tensor]


def observations(waiting: list[int], machines: int = 6, queue: int = 7, seed: int = 0) -> Batch:
    """One observation for each number of waiting jobs; unused rows hold random numbers."""
    generator = torch.Generator().manual_seed(seed)
    batch, past = len(waiting), 8

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator)

    rack = torch.arange(machines) // 3
    job_mask = torch.arange(queue).expand(batch, -1) < torch.tensor(waiting).unsqueeze(1)
    # A quarter of the gang, half of it, all of it, or nothing fits on a machine.
    shares = torch.randint(1, 4, (batch, queue, machines), generator=generator) ** 2 / 8
    held = torch.where(uniform(batch, queue, machines) < 0.4, shares.clamp(max=1), 0.0)
    racks = torch.nn.functional.one_hot(rack).float()
    return {
        "jobs": uniform(batch, queue, JOB_FEATURES),
        "job_mask": job_mask,
        "heeded": uniform(batch, queue) < 0.8,
        "machines": uniform(batch, machines, MACHINE_FEATURES),
        "held": held,
        "rack_held": (held @ racks).clamp(max=1),
        "rack": rack,
        "history_y": uniform(batch, past, machines),
        "history_mask": uniform(batch, past, machines) < 0.5,
        "history_t": uniform(batch, past) * 1000,
    }


def heads_of(network: DasNetwork) -> list[torch.nn.Linear]:
    """Heads that are initialised to zero."""
    return [network.ordering.rank, network.placement.prior, network.placement.spread]


def module_of(std: float = 0.3, **settings: Any) -> DasModule:
    """With random heads, unless their std is 0."""
    torch.manual_seed(3)
    module = DasModule(
        observation_space=None, action_space=None, model_config={"network": settings}
    )
    for head in heads_of(module.network):
        torch.nn.init.normal_(head.weight, std=std)
    return module


def one_of(batch: Batch, number: int, rows: int) -> Batch:
    """A batch of one observation, with its first `rows` rows."""
    found = {
        name: table if name == "rack" else table[number : number + 1]
        for name, table in batch.items()
    }
    return found | {name: found[name][:, :rows] for name in OF_JOBS}
