"""The running episode of a tenant, and what a policy learns from it.

A step is a decision with its feedback. The gateway collects steps, in the order of their decisions;
a decision without feedback is left out. A complete episode is sent to a worker, where the policy
learns from it (`EpisodePolicy`): one line of memory for decisions, and numbers that only the next
episode needs. An episode is of one format: the steps of another begin a new one.

All of it is bounded: the rows of an episode and what was learned by MAX_NUMBERS each, decisions
that wait for feedback by MAX_WAITING.
"""

from __future__ import annotations

import base64
import struct
from bisect import bisect
from typing import Any

from pydantic import BaseModel, Field

from loadmaster.serving.decisions.policy_memory import (
    MAX_NUMBERS,
    MAX_STEP,
    EncodedStep,
    decode_numbers,
    encode_numbers,
    write_memory,
)

MAX_WAITING = 16  # decisions whose feedback is still expected
EPISODE_BYTES, WAITING_BYTES = 800, 300  # memory, estimated: without its parts, and of an id
MAX_REWARD = 1e30  # in size; single precision ends at 3e38
_REWARD = struct.Struct("<f")  # follows the numbers of a row


class LearnRequest(BaseModel):
    """An episode for a worker; numbers are base64."""

    format: str
    rows: str  # a step after another: observation, action, reward
    width: int = Field(ge=2)  # numbers of a step
    episodes: str  # of what was learned before; "": nothing was


class LearnReply(BaseModel):
    """What a policy has learned."""

    line: str  # of the memory
    episodes: str  # base64, of the next request


class EpisodeRecord(BaseModel):
    """An episode as it is saved."""

    format: str
    version: str
    steps: int = Field(ge=0)
    rows: str
    numbers: list[int]
    waiting: list[tuple[str, int, str]] = Field(max_length=MAX_WAITING)  # id, number, row
    learned: str


class Episode:
    """Steps of a tenant since the policy last learned from it."""

    def __init__(self, format: str) -> None:
        """`format`: of what is learned."""
        self.format = format
        self.version = ""  # of the bundle that made the latest step, which learns
        self._steps = 0  # of a complete episode
        self._row_bytes = 0  # of each row; any, while there are none
        self._rows = bytearray()  # of steps with feedback
        self._numbers: list[int] = []  # of these steps, rising
        self._waiting: dict[str, tuple[int, bytes]] = {}  # number and row, by decision id
        self._next = 0  # number
        self.learned = ""  # numbers in base64: `Learned.episodes`

    @property
    def last(self) -> int:
        """Number of the last step with feedback."""
        return self._numbers[-1]

    @property
    def memory_bytes(self) -> int:
        waiting = (WAITING_BYTES + self._row_bytes) * len(self._waiting)
        rows = len(self._rows) + 36 * len(self._numbers)
        return EPISODE_BYTES + rows + waiting + len(self.learned)

    def fits(self, step: EncodedStep) -> bool:
        """Whether a step is of this episode's format."""
        row_bytes = 3 * len(step.row) // 4 - step.row[-2:].count("=") + _REWARD.size
        is_empty = not self._rows and not self._waiting
        return step.format == self.format and (is_empty or row_bytes == self._row_bytes)

    def add(self, decision_id: str, step: EncodedStep) -> None:
        """Add a decision that fits, which waits for its feedback."""
        row = base64.b64decode(step.row)
        self.version, self._steps = step.version, step.steps
        self._row_bytes = len(row) + _REWARD.size
        self._waiting[decision_id] = self._next, row
        self._next += 1
        if len(self._waiting) > MAX_WAITING:
            del self._waiting[next(iter(self._waiting))]

    def add_reward(self, decision_id: str | None, reward: float) -> bool:
        """Complete the step of a decision; returns whether that makes the episode complete."""
        if decision_id is None or (found := self._waiting.pop(decision_id, None)) is None:
            return False
        if abs(reward) > MAX_REWARD:
            return False
        number, row = found
        place = bisect(self._numbers, number)
        start = place * self._row_bytes
        self._numbers.insert(place, number)
        self._rows[start:start] = row + _REWARD.pack(reward)
        if (excess := len(self._numbers) - self._steps) > 0:  # they could not be learned from
            del self._numbers[:excess], self._rows[: excess * self._row_bytes]
        return excess >= 0

    def request(self) -> bytes:
        """The episode so far, for `learn_with`."""
        rows = base64.b64encode(self._rows).decode()
        width = self._row_bytes // _REWARD.size
        request = LearnRequest(format=self.format, rows=rows, width=width, episodes=self.learned)
        return request.model_dump_json().encode()

    def drop(self, last: int) -> None:
        """Drop the steps up to that number, also those without feedback."""
        count = bisect(self._numbers, last)
        del self._numbers[:count], self._rows[: count * self._row_bytes]
        self._waiting = {name: one for name, one in self._waiting.items() if one[0] > last}

    def record(self) -> dict[str, Any]:
        return {
            "format": self.format,
            "version": self.version,
            "steps": self._steps,
            "rows": base64.b64encode(self._rows).decode(),
            "numbers": self._numbers.copy(),
            "waiting": [
                (name, number, base64.b64encode(row).decode())
                for name, (number, row) in self._waiting.items()
            ],
            "learned": self.learned,
        }

    @classmethod
    def restored(cls, record: Any) -> Episode | None:
        """From `record()`; None if there is none, or if it is damaged."""
        try:
            saved = EpisodeRecord.model_validate(record)
            rows, numbers = base64.b64decode(saved.rows), saved.numbers
            waiting = {name: (number, base64.b64decode(row)) for name, number, row in saved.waiting}
        except ValueError:
            return None
        sizes = {len(row) + _REWARD.size for _, row in waiting.values()}
        if numbers:
            sizes.add(len(rows) // len(numbers))
        row_bytes = max(sizes, default=0)
        if (
            len(sizes) > 1
            or bool(sizes) != bool(row_bytes and saved.steps)
            or row_bytes % _REWARD.size
            or row_bytes > _REWARD.size * (MAX_STEP + 1)
            or len(rows) != len(numbers) * row_bytes
            or len(rows) > _REWARD.size * MAX_NUMBERS
            or numbers != sorted(set(numbers))
            or decode_numbers(saved.learned) is None
        ):
            return None
        episode = cls(saved.format)
        episode.version, episode.learned, episode._steps = saved.version, saved.learned, saved.steps
        episode._row_bytes, episode._rows, episode._numbers = row_bytes, bytearray(rows), numbers
        episode._waiting = waiting
        known = [*numbers, *(number for number, _ in waiting.values())]
        episode._next = 1 + max(known, default=-1)
        return episode


def learn_with(policy: Any, request: bytes) -> bytes:
    """Let a policy learn from the episode of a LearnRequest; returns a LearnReply.

    Raises ValueError if it cannot, FloatingPointError if it learns NaN or infinity.
    """
    episode = LearnRequest.model_validate_json(request)
    own: str = getattr(policy, "learned_format", "")
    if own != episode.format:
        raise ValueError(f"an episode for {episode.format!r}; expected {own!r}")
    numbers = decode_numbers(episode.rows)
    if numbers is None or not len(numbers) or len(numbers) % episode.width:
        raise ValueError(f"the rows are damaged; expected {episode.width} numbers a step")
    rows = numbers.reshape(-1, episode.width)
    before = decode_numbers(episode.episodes) if episode.episodes else None
    learned = policy.learn(rows[:, :-1], rows[:, -1], before)
    write_memory(own, learned.episodes)  # raises if they cannot be kept
    line, episodes = write_memory(own, learned.memory), encode_numbers(learned.episodes)
    return LearnReply(line=line, episodes=episodes).model_dump_json().encode()
