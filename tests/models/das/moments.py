"""Observations of made-up moments, as DAS's network is given them."""

from __future__ import annotations

import torch
from torch import Tensor

from loadmaster.envs.gpu_scheduling.features import JOB_FEATURES, MACHINE_FEATURES
from loadmaster.models.das.network import DasNetwork
from loadmaster.models.das.settings import DasSettings

MACHINES_PER_RACK = 3
VARIANTS = {
    "DA": DasSettings(communicate=False, process=False),
    "DA+MC": DasSettings(process=False),
    "DA+RWGP": DasSettings(communicate=False),
    "DAS": DasSettings(),
}
OF_JOBS = ("jobs", "job_mask", "heeded", "held", "rack_held")  # tables with a row for each
Moments = dict[str, Tensor]


def moments(waiting: list[int], machines: int = 6, queue: int = 7, seed: int = 0) -> Moments:
    """One moment for each number of waiting jobs; the rest of the rows is rubbish."""
    luck = torch.Generator().manual_seed(seed)
    batch, past = len(waiting), 8

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=luck)

    rack = torch.arange(machines) // MACHINES_PER_RACK
    job_mask = torch.arange(queue).expand(batch, -1) < torch.tensor(waiting).unsqueeze(1)
    # Each machine has room for a quarter of the gang, half of it, all of it, or nothing.
    room = torch.randint(1, 4, (batch, queue, machines), generator=luck) ** 2 / 8
    held = torch.where(uniform(batch, queue, machines) < 0.4, room.clamp(max=1), 0.0)
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


def network_of(variant: str, seed: int = 1) -> DasNetwork:
    """With opinions: as built, priorities and affinities hardly differ."""
    torch.manual_seed(seed)
    network = DasNetwork(VARIANTS[variant])
    for head in (network.ordering.rank, network.placement.prior, network.placement.spread):
        torch.nn.init.normal_(head.weight, std=0.5)
    torch.nn.init.normal_(network.placement.of_pair.weight)
    return network


def one_of(observation: Moments, number: int, rows: int) -> Moments:
    """That moment alone, in a queue of `rows`."""
    found = {
        name: table if name == "rack" else table[number : number + 1]
        for name, table in observation.items()
    }
    for name in OF_JOBS:
        found[name] = found[name][:, :rows]
    return found


def usable(observation: Moments) -> Tensor:
    """(B, Q, M) where a job that is one has room."""
    return (observation["held"] > 0) & observation["job_mask"].unsqueeze(-1)


def with_machines(observation: Moments, order: Tensor) -> Moments:
    """The same moments, with the machines told in another order."""
    found = dict(observation)
    found["machines"] = observation["machines"][:, order]
    found["rack"] = observation["rack"][order]
    for name in ("held", "history_y", "history_mask"):
        found[name] = observation[name][..., order]
    return found
