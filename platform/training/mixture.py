"""Training over a mixture of settings: sequences take turns, costs are relative to a rule's."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from loadmaster.envs.metrics import Measure
from loadmaster.envs.settings import SettingsType, build_settings

Member = TypeVar("Member")
Changes = tuple[dict[str, Any], ...]  # of the environment's settings, one for each member


def mixed_settings(
    environment: SettingsType, changes: Sequence[Mapping[str, Any]]
) -> tuple[SettingsType, ...]:
    """`environment` with each of the changes; alone if there are none.

    An InputError names a wrong setting.
    """
    own = environment.model_dump(exclude_unset=True)
    kind = type(environment)
    return tuple(build_settings(kind, {**own, **one}) for one in changes) or (environment,)


def relative_measure(rule: str) -> Measure:
    """What validation measures on a mixture: settings differ in the scale of their costs."""
    return Measure("relative_cost", f"cost in % of that of {rule}", "%")


class Mixture(Generic[Member]):
    """Members of a mixture in turn, and cached costs of the rule that others are relative to."""

    def __init__(
        self, members: Sequence[Member], reference: Callable[[Member, int], float]
    ) -> None:
        """`reference` is the rule's cost on a sequence of a member."""
        self.members = tuple(members)
        self._reference, self._costs = reference, dict[int, float]()

    def member(self, sequence: int) -> Member:
        return self.members[sequence % len(self.members)]

    def relative_cost(self, sequence: int, cost: float) -> float:
        """A cost on a sequence in % of the rule's; the rule runs once for each sequence."""
        if sequence not in self._costs:
            self._costs[sequence] = self._reference(self.member(sequence), sequence)
        return 100 * (cost / self._costs[sequence])
