"""Simulation of episode rewards, and figures of how a monitor notices their falls.

An episode takes 100 minutes, so a day has 14.4 of them. Rewards have noise and a daily cycle.
`python -m tests.serving.monitoring.reward_simulation` prints the figures of docs/benchmarks.md.
"""

import math
import random
from collections.abc import Callable, Iterator
from statistics import median
from typing import NamedTuple

from loadmaster.serving.monitoring.lifecycle import LifecycleSettings, LifecycleState
from loadmaster.serving.monitoring.monitor import Monitor, MonitorSettings
from loadmaster.serving.monitoring.reward_falls import FallSettings

EPISODE_S, DAY_S = 6000.0, 86_400.0
LEVEL, RULES, WINDOW = 150.0, 120.0, 10
PATIENCE = 60  # episodes after a fall
Alarm = Callable[[float, float], bool]  # (time, reward of an episode) -> whether it is one


class Rewards(NamedTuple):
    """A stream of rewards; shares of their level."""

    noise: float = 0.03
    cycle: float = 0.03
    is_square: bool = False  # high in working hours, low in others
    correlation: float = 0.0  # of successive noise

    def draw(self, rng: random.Random, level: float = LEVEL) -> Iterator[tuple[float, float]]:
        """Times and rewards, from a random hour on."""
        start, noise = rng.random() * DAY_S, 0.0
        fresh = self.noise * math.sqrt(1 - self.correlation**2)
        number = 0
        while True:
            time = start + number * EPISODE_S
            wave = math.sin(2 * math.pi * time / DAY_S)
            if self.is_square:
                wave = 1.0 if wave > 0.2 else -1.0
            noise = self.correlation * noise + rng.gauss(0, fresh)
            yield time, level * (1 + self.cycle * wave + noise)
            number += 1


def monitor_alarm(settings: MonitorSettings) -> Callable[[random.Random, Rewards], Alarm]:
    """Alarms of a serving policy's monitor, which knows the rewards of the rules."""

    def make(rng: random.Random, rewards: Rewards) -> Alarm:
        monitor = Monitor(settings)
        drawn = rewards.draw(rng, RULES)
        for _ in range(WINDOW):
            monitor.record_feedback(*next(drawn), "rule")

        def alarm(time: float, reward: float) -> bool:
            monitor.record_feedback(time, reward, "policy")
            found = monitor.recommendation(LifecycleState.SERVING)
            if found.action == "keep" and found.to is None:
                monitor.update_converged()
                return False
            monitor.acted_on()
            return True

        return alarm

    return make


def false_alarms(
    make: Callable[[random.Random, Rewards], Alarm], rewards: Rewards, runs: int = 20
) -> float:
    """Mean number in 1,000 steady episodes."""
    found = 0
    for seed in range(runs):
        rng = random.Random(seed)
        alarm, drawn = make(rng, rewards), rewards.draw(rng)
        found += sum(alarm(*next(drawn)) for _ in range(1000))
    return found / runs


def delays(
    make: Callable[[random.Random, Rewards], Alarm],
    rewards: Rewards,
    fall: float = 0.10,
    steady: int = 100,
    runs: int = 60,
) -> list[int]:
    """Episodes until a fall is noticed, sorted; PATIENCE if it is not."""
    found = []
    for seed in range(runs):
        rng = random.Random(1000 + seed)
        alarm, drawn = make(rng, rewards), rewards.draw(rng)
        for _ in range(steady + rng.randrange(15)):
            alarm(*next(drawn))
        delay = 1
        while not alarm((drop := next(drawn))[0], drop[1] - fall * LEVEL) and delay < PATIENCE:
            delay += 1
        found.append(delay)
    return sorted(found)


STREAMS = {
    "noise 2%": Rewards(0.02),
    "noise 3%": Rewards(0.03),
    "noise 4%": Rewards(0.04),
    "noise 4%, correlated 0.3": Rewards(0.04, correlation=0.3),
    "noise 3%, working hours": Rewards(0.03, is_square=True),
}
NO_FALLS, NO_ADWIN = FallSettings(between_false_alarms=1e300), 1e-9
PAPER = LifecycleSettings(window=WINDOW, z_threshold=0)
EPISODES = LifecycleSettings(window=WINDOW)
MONITORS = {
    "window, z 0 (the paper's rule)": MonitorSettings(
        lifecycle=PAPER, delta=NO_ADWIN, falls=NO_FALLS
    ),
    "window, z 4, and ADWIN": MonitorSettings(lifecycle=EPISODES, reward_block=1, falls=NO_FALLS),
    "window, z 4, ADWIN and CUSUM": MonitorSettings(lifecycle=EPISODES),
}


def main() -> None:
    for name, settings in MONITORS.items():
        print(f"{name}: false alarms in 1,000 steady episodes; median delay, 90th percentile")
        make = monitor_alarm(settings)
        for stream, rewards in STREAMS.items():
            found = delays(make, rewards)
            late = found[int(0.9 * len(found))]
            print(f"  {stream}: {false_alarms(make, rewards):.2f}; {median(found):g}, {late}")


if __name__ == "__main__":
    main()
