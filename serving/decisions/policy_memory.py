"""What a policy remembers of a tenant: numbers that travel with every decision.

Workers are stateless. The gateway sends the memory of a tenant with a request, and stores what
comes back with the proposal. A policy with memory has a `memory_format`, the name of the layout of
its numbers; of a memory in another format it gets nothing. Bundles of one format share it.

Everywhere but inside a policy, memory is a text: a line `FORMAT BASE64` for each format, little
endian numbers of four bytes, the latest line last. So a logged decision can be repeated exactly.
"""

import base64
import binascii
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.models.policy import Proposal
from loadmaster.serving.system import Policy

MAX_NUMBERS = 4096  # of a memory
MAX_FORMATS = 2  # of a tenant: of the policy that acts, and of one in the shadow
MAX_TEXT = MAX_FORMATS * (64 + 2 + 4 * -(-4 * MAX_NUMBERS // 3))
_FORMAT = re.compile(r"[A-Za-z0-9._-]{1,64}")
_NUMBERS = np.dtype("<f4")


def decide_with(policy: Policy, state: Any, memory: str) -> Proposal:
    """Let a policy decide with the part of a tenant's memory that it can read."""
    kind: str = getattr(policy, "memory_format", "")
    if not kind:
        return policy.decide(state)
    remembering: Any = policy
    proposal: Proposal = remembering.decide(state, read_memory(memory, kind))
    return proposal


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


def write_memory(kind: str, numbers: NDArray[np.float32]) -> str:
    """The line of a memory of that format."""
    if numbers.ndim != 1 or len(numbers) > MAX_NUMBERS:
        shape = "x".join(map(str, numbers.shape))
        raise ValueError(f"a memory of {shape} numbers; expected a row of at most {MAX_NUMBERS}")
    if not np.isfinite(numbers).all():
        raise FloatingPointError("the memory holds NaN or infinity")
    return f"{kind} {base64.b64encode(numbers.astype(_NUMBERS).tobytes()).decode()}"


def read_memory(memory: str, kind: str) -> NDArray[np.float32] | None:
    """The numbers of that format; None if there are none, or if they are damaged."""
    for line in memory.split("\n"):
        name, _, encoded = line.partition(" ")
        if name == kind:
            try:
                numbers = np.frombuffer(base64.b64decode(encoded, validate=True), _NUMBERS)
            except (binascii.Error, ValueError):
                return None
            valid = len(numbers) <= MAX_NUMBERS and bool(np.isfinite(numbers).all())
            return numbers.astype(np.float32) if valid else None
    return None


def format_of(line: str) -> str:
    return line.partition(" ")[0]


def with_line(memory: str, line: str) -> str:
    """A memory with another line, in place of that of the same format or of the oldest ones."""
    others = [one for one in memory.split("\n") if one and format_of(one) != format_of(line)]
    return "\n".join([*others[1 - MAX_FORMATS :], line])
