"""Policies that compiled code plays by, selected by the type of their tables.

A function that plays episodes calls `act`, and is compiled once for each type of `player`: for the
heuristics' `Rule`, and for the tables that `models` register.
"""

from collections.abc import Callable
from typing import Any

from numba import types

from loadmaster.envs.compiled import compiled_overload
from loadmaster.envs.dag_scheduling.baselines import Baseline
from loadmaster.envs.dag_scheduling.baselines.rules import decide
from loadmaster.envs.dag_scheduling.observation import Observation
from loadmaster.envs.dag_scheduling.state import SimState

Player = Any  # tables of a policy for compiled code: of a rule, or of a registered type
PlayerFor = Callable[[SimState], Player]  # for states with as many stages and jobs


def player_of(rule: Baseline) -> PlayerFor:
    """Play by a heuristic."""
    return lambda _: rule.encoded


def act(player: Player, view: Observation, seed: int, count: int) -> tuple[int, int]:
    """Choose (stage row, limit); in compiled code the type of `player` selects the function.

    It may exclude stages in `view`. `seed` and `count` key random draws.
    """
    raise TypeError("act is for compiled code")


@compiled_overload(act)
def _act_by_rule(player: Any, view: Any, seed: Any, count: Any) -> Any:
    if isinstance(player, types.BaseTuple) and not isinstance(player, types.BaseNamedTuple):
        return lambda player, view, seed, count: decide(player, view, seed, count)
    return None


def register_player(kind: type, function: Callable[..., tuple[int, int]]) -> None:
    """Make `act` call a compiled function, with the same arguments, for a NamedTuple type."""

    @compiled_overload(act)
    def _act_by_type(player: Any, view: Any, seed: Any, count: Any) -> Any:
        if isinstance(player, types.BaseNamedTuple) and player.instance_class is kind:
            return lambda player, view, seed, count: function(player, view, seed, count)
        return None
