"""How policies are timed beside one another.

By this thread's CPU time, torch held to one thread, and by turns: what a busy machine does to one
contender it then does to all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch

PER_S = "decisions/s"


@contextmanager
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def measured_by_turns(
    system: str, ways: Mapping[str, Callable[[], int]], rounds: int, say: Callable[[str], None]
) -> dict[str, float]:
    """Decisions per second of CPU time, each over all its turns.

    `ways` are ways to roll out, each ready to run and to say how many decisions it made.
    """
    decisions, spent = dict.fromkeys(ways, 0), dict.fromkeys(ways, 0.0)
    for turn in range(rounds):
        for name, roll_out in ways.items():
            told = name.strip("/") or "compiled"
            say(f"{system}: rollouts, turn {turn + 1} of {rounds}: {told}")
            began = time.thread_time()
            decisions[name] += roll_out()
            spent[name] += time.thread_time() - began
    return {name: decisions[name] / spent[name] for name in ways}
