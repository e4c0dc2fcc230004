"""What a policy remembers of a tenant: numbers that travel with every decision.

Workers are stateless. The gateway sends the memory of a tenant with a request, and stores what
comes back with the proposal. A policy with memory has a `memory_format`, the name of the layout of
its numbers; of a memory in another format it gets nothing. Bundles of one format share it.

Everywhere but inside a policy, memory is a text: a line `FORMAT BASE64` for each format, little
endian numbers of four bytes, the latest line last. So a logged decision can be repeated exactly.

A policy that learns from episodes also has a `learned_format`, the `episode_steps` of an episode,
and `learn` (`EpisodePolicy`). What it learned is a line of its own, which a decision reads and does
not write: one under way when an episode ends does not undo what was learned of it.
"""

import base64
import binascii
import re
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from loadmaster.models.policy import Learned, Proposal
from loadmaster.serving.system import Policy

MAX_NUMBERS = 4096  # of a memory
MAX_STEP = 255  # numbers of a step of an episode
MAX_FORMATS = 4  # of a tenant: two of the policy that acts, and two of one in the shadow
MAX_TEXT = MAX_FORMATS * (64 + 2 + 4 * -(-4 * MAX_NUMBERS // 3))
FORMAT_PATTERN = r"[A-Za-z0-9._-]{1,64}"
_FORMAT = re.compile(FORMAT_PATTERN)
_NUMBERS = np.dtype("<f4")

Singles = NDArray[np.float32]


class EpisodePolicy(Protocol):
    """A policy that learns from episodes of a tenant."""

    @property
    def version(self) -> str: ...
    @property
    def learned_format(self) -> str: ...  # "": it does not learn
    @property
    def episode_steps(self) -> int: ...

    def learn(self, rows: Singles, rewards: Singles, episodes: Singles | None) -> Learned:
        """Learn from an episode: rows (steps, observation and action), rewards (steps,).

        `episodes`: of what was learned before; None: nothing was.
        """
        ...


class EncodedStep(NamedTuple):
    """A decision as a step of an episode, in a reply of a worker."""

    format: str  # of what will be learned
    version: str  # of the bundle that learns
    steps: int  # of an episode
    row: str  # base64: observation and action


def decide_with(policy: Policy, state: Any, memory: str) -> Proposal:
    """Let a policy decide with the part of a tenant's memory that it can read."""
    kind: str = getattr(policy, "memory_format", "")
    if not kind:
        return policy.decide(state)
    remembering: Any = policy
    known = [read_memory(memory, kind)]
    if learned := getattr(policy, "learned_format", ""):
        known.append(read_memory(memory, learned))
    proposal: Proposal = remembering.decide(state, *known)
    return proposal


def encode_step(policy: Any, proposal: Proposal, acts: bool) -> EncodedStep | None:
    """The step of a policy's proposal, with zeros as action where another decides.

    None if the policy does not learn, or if the step holds NaN or infinity. Raises ValueError for
    a step that cannot be stored.
    """
    if (step := proposal.step) is None:
        return None
    learner: EpisodePolicy = policy
    action = step.action if acts and not proposal.unknown else np.zeros_like(step.action)
    row = np.concatenate([step.observation, action])
    if len(row) > MAX_STEP or not _FORMAT.fullmatch(learner.learned_format):
        what = f"a step of {len(row)} numbers for {learner.learned_format!r}"
        raise ValueError(f"{what}; expected at most {MAX_STEP}, for a format {_FORMAT.pattern}")
    if not np.isfinite(row).all():
        return None
    steps = max(1, min(learner.episode_steps, MAX_NUMBERS // (len(row) + 1)))
    return EncodedStep(learner.learned_format, learner.version, steps, encode_numbers(row))


def memory_line(policy: Policy, proposal: Proposal) -> str:
    """The line of what a policy remembers after a decision; "" if nothing.

    Raises ValueError for a memory that cannot be stored, FloatingPointError for NaN or infinity.
    """
    if proposal.memory is None:
        return ""
    kind: str = getattr(policy, "memory_format", "")
    if not _FORMAT.fullmatch(kind):
        raise ValueError(f"memory_format is {kind!r}; expected {_FORMAT.pattern}")
    return write_memory(kind, proposal.memory)


def write_memory(kind: str, numbers: Singles) -> str:
    """The line of a memory of that format."""
    if numbers.ndim != 1 or len(numbers) > MAX_NUMBERS:
        shape = "x".join(map(str, numbers.shape))
        raise ValueError(f"a memory of {shape} numbers; expected a row of at most {MAX_NUMBERS}")
    if not np.isfinite(numbers).all():
        raise FloatingPointError("the memory holds NaN or infinity")
    return f"{kind} {encode_numbers(numbers)}"


def read_memory(memory: str, kind: str) -> Singles | None:
    """The numbers of that format; None if there are none, or if they are damaged."""
    for line in memory.split("\n"):
        name, _, encoded = line.partition(" ")
        if name == kind:
            return decode_numbers(encoded)
    return None


def encode_numbers(numbers: Singles) -> str:
    return base64.b64encode(numbers.astype(_NUMBERS).tobytes()).decode()


def decode_numbers(encoded: str) -> Singles | None:
    """A row of numbers; None if they are damaged, too many, or not finite."""
    try:
        numbers = np.frombuffer(base64.b64decode(encoded, validate=True), _NUMBERS)
    except (binascii.Error, ValueError):
        return None
    valid = len(numbers) <= MAX_NUMBERS and bool(np.isfinite(numbers).all())
    return numbers.astype(np.float32) if valid else None


def format_of(line: str) -> str:
    return line.partition(" ")[0]


def with_line(memory: str, line: str) -> str:
    """A memory with another line, in place of that of the same format or of the oldest ones."""
    others = [one for one in memory.split("\n") if one and format_of(one) != format_of(line)]
    return "\n".join([*others[1 - MAX_FORMATS :], line])
