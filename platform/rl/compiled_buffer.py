"""Former place of `rollout_buffer.CompiledBuffer`."""

from loadmaster.platform.rl.rollout_buffer import FULL, CompiledBuffer, copy_rows
from loadmaster.platform.rl.rollout_buffer import INITIAL_DECISIONS as FIRST_ROOM

__all__ = ["FIRST_ROOM", "FULL", "CompiledBuffer", "copy_rows"]
