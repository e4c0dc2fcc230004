"""How long training takes, rollouts and updates together, as `loadmaster train` does it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from loadmaster.platform.bench.results import Figure
from loadmaster.platform.ray_session import ray_session
from loadmaster.platform.training.config import TrainingConfig
from loadmaster.platform.training.recipe import Recipe
from loadmaster.platform.training.trainer import Trainer


def every_decision(config: TrainingConfig) -> TrainingConfig:
    """The same, with every decision learnt from in every pass: no work is left out by chance."""
    rollouts = config.rollouts.model_copy(update={"keep": 1.0})
    learning = config.training.model_copy(update={"stop_at_kl": float("inf")})
    return config.model_copy(update={"rollouts": rollouts, "training": learning})


def training_speed(
    recipe: Recipe,
    config: TrainingConfig,
    iterations: int,
    peer_name: str,
    peers: Mapping[str, float],
) -> Iterator[Figure]:
    """Seconds on the clock for 1,000 decisions made and learnt from, after a first iteration.

    `peers`: which seconds of an iteration's figures to show, and what a peer needs for each.
    """
    with ray_session(cpus=config.rollouts.workers + 1):
        trainer = Trainer(recipe, every_decision(config))
        try:
            trainer.step()
            rows = [trainer.step() for _ in range(iterations)]
        finally:
            trainer.stop()
    decisions = sum(row["decisions"] for row in rows)
    for name, peer in peers.items():
        yield Figure(
            f"{recipe.system}/training/{name}_per_1000_decisions",
            1000 * sum(row[name] for row in rows) / decisions,
            "s",
            peer,
            peer_name,
            higher_is_better=False,
        )
