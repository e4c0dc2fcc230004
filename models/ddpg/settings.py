"""Settings of the actor and the critics, and names of their columns in a batch.

Imports neither torch nor numba.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from loadmaster.envs.settings import Settings

# Columns of a batch beside RLlib's: a vector for each row, or its row in the module's table.
CONTEXT, CONTEXT_ID = "context", "context_id"
SMOOTHING = "smoothing"  # noise of the target actor's actions
MOST_CONTEXTS = 1 << 20

Widths = Annotated[tuple[PositiveInt, ...], Field(min_length=1, max_length=8)]


class DdpgSettings(Settings):
    """Layers of the networks; activations are ReLU, actions tanh."""

    observation: PositiveInt  # numbers of an observation
    action: PositiveInt  # numbers of an action, each between -1 and 1
    actor: Widths = (64, 64)  # hidden layers
    critic: Widths = (64, 64)
    critics: Literal[1, 2] = 1  # 2: targets are the lower of both (TD3)
    context: NonNegativeInt = 0  # numbers of a context vector, such as an embedding
    critic_context: bool = True  # false: only the actor's input contains it

    @model_validator(mode="after")
    def _check(self) -> Self:
        wide = max(self.observation, self.action, self.context, *self.actor, *self.critic)
        if wide > 1 << 16:
            raise ValueError(f"a layer of {wide:,} numbers; expected at most 65,536")
        return self

    @property
    def actor_inputs(self) -> int:
        return self.observation + self.context

    @property
    def critic_inputs(self) -> int:
        return self.observation + self.action + (self.context if self.critic_context else 0)
