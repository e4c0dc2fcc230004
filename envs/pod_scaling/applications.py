"""Applications: sums over function segments, and the generated set of 1,000.

An application handles each request with its segments one after another, so CPU time, I/O time,
memory and bytes are sums over them. The constants of the segments are plausible values for a small
payload, not measurements.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations_with_replacement
from typing import NamedTuple

import numpy as np

from loadmaster.envs.errors import InputError, unknown_name

TRAIN, TEST = "train", "test"
TRAINED, GENERATED = 800, 1000
MOST_SEGMENTS = 3  # of a generated application
SEED = 2023  # of the generated set and its split
LEVEL_P99 = float(np.log(100.0))  # p99 of an exponential time, in units of its mean
RUNTIME_MIB = 60.0  # of an application's process, whatever its segments


class Segment(NamedTuple):
    """A function that a request passes; means of a request."""

    cpu_s: float
    io_s: float  # waiting for disk or network
    memory_mib: float  # m0
    request_mib: float  # m1, of each request in flight
    disk_mb: float
    network_mb: float
    start_s: float  # of a new container, beyond the runtime's own
    slo_factor: float  # SLO of the p99, relative to the p99 of a request alone on one core


SEGMENTS = {
    "compress": Segment(0.060, 0.004, 30, 6.0, 4.0, 0.1, 0.2, 3.0),
    "decompress": Segment(0.025, 0.004, 30, 8.0, 4.0, 0.1, 0.2, 3.0),
    "floatOperations": Segment(0.040, 0.000, 15, 0.5, 0.0, 0.0, 0.1, 3.0),
    "imageCompress": Segment(0.080, 0.003, 70, 12.0, 2.0, 0.3, 0.6, 3.0),
    "imageResize": Segment(0.050, 0.003, 70, 10.0, 2.0, 0.3, 0.6, 3.0),
    "imageRotate": Segment(0.035, 0.003, 70, 10.0, 2.0, 0.3, 0.6, 3.0),
    "json2yaml": Segment(0.030, 0.001, 20, 2.0, 0.1, 0.1, 0.2, 3.0),
    "matMul": Segment(0.120, 0.000, 90, 8.0, 0.0, 0.0, 0.5, 3.0),
    "readFile": Segment(0.006, 0.012, 20, 4.0, 6.0, 0.0, 0.1, 4.0),
    "sleep": Segment(0.001, 0.100, 10, 0.3, 0.0, 0.0, 0.1, 2.0),
    "writeFile": Segment(0.008, 0.020, 20, 4.0, 6.0, 0.0, 0.1, 4.0),
    "S3Read": Segment(0.010, 0.040, 50, 5.0, 0.0, 2.0, 0.5, 4.0),
    "S3Stream": Segment(0.018, 0.080, 50, 2.0, 0.0, 6.0, 0.5, 4.0),
    "S3Write": Segment(0.012, 0.060, 50, 5.0, 0.0, 2.0, 0.5, 4.0),
    "dynamoRead": Segment(0.004, 0.008, 45, 0.6, 0.0, 0.1, 0.5, 5.0),
    "dynamoWrite": Segment(0.005, 0.012, 45, 0.6, 0.0, 0.1, 0.5, 5.0),
    "webServe": Segment(0.015, 0.010, 180, 1.5, 0.2, 0.5, 6.0, 5.0),
    "mlServe": Segment(0.150, 0.005, 640, 16.0, 0.1, 0.4, 25.0, 4.0),
}


@dataclass(frozen=True)
class Application:
    """What the simulator knows of an application; means of a request."""

    name: str
    cpu_s: float
    io_s: float
    memory_mib: float
    request_mib: float
    slo_s: float  # of the p99
    disk_mb: float = 0.0
    network_mb: float = 0.0
    start_s: float = 2.0  # median of a container's start

    def __post_init__(self) -> None:
        """Raise InputError for what cannot be simulated."""
        positive = {"cpu_s": self.cpu_s, "memory_mib": self.memory_mib, "slo_s": self.slo_s}
        others = {
            "io_s": self.io_s, "request_mib": self.request_mib, "disk_mb": self.disk_mb,
            "network_mb": self.network_mb, "start_s": self.start_s,
        }  # fmt: skip
        for name, value in positive.items():
            if not 0 < value < np.inf:
                raise InputError(
                    f"application {self.name!r}: {name} is {value:g}; expected more than 0"
                )
        for name, value in others.items():
            if not 0 <= value < np.inf:
                raise InputError(
                    f"application {self.name!r}: {name} is {value:g}; expected 0 or more"
                )

    def with_payload(self, factor: float) -> "Application":
        """The application with larger requests; its SLO stays."""
        return replace(
            self,
            cpu_s=self.cpu_s * factor,
            io_s=self.io_s * factor,
            request_mib=self.request_mib * factor,
            disk_mb=self.disk_mb * factor,
            network_mb=self.network_mb * factor,
        )


def compose(segments: Sequence[str], name: str | None = None) -> Application:
    """The application with these segments; its name by default is theirs, joined by +."""
    if not segments:
        raise InputError("application without segments; expected one or more")
    for segment in segments:
        if segment not in SEGMENTS:
            raise unknown_name("segment", str(segment), SEGMENTS)
    parts = [SEGMENTS[segment] for segment in segments]
    return Application(
        name=name or "+".join(segments),
        cpu_s=sum(part.cpu_s for part in parts),
        io_s=sum(part.io_s for part in parts),
        memory_mib=RUNTIME_MIB + sum(part.memory_mib for part in parts),
        request_mib=sum(part.request_mib for part in parts),
        slo_s=sum(part.slo_factor * (part.io_s + LEVEL_P99 * part.cpu_s) for part in parts),
        disk_mb=sum(part.disk_mb for part in parts),
        network_mb=sum(part.network_mb for part in parts),
        start_s=2.0 + sum(part.start_s for part in parts),
    )


@lru_cache(maxsize=1)
def generated() -> tuple[tuple[str, ...], ...]:
    """Segments of the GENERATED applications, those of training first.

    Sums do not depend on the order of segments, so each combination is there once: two applications
    of the set differ, and none of the test set is in the training set by another name.
    """
    combinations = [
        chosen
        for count in range(1, MOST_SEGMENTS + 1)
        for chosen in combinations_with_replacement(SEGMENTS, count)
    ]
    order = np.random.default_rng(SEED).permutation(len(combinations))[:GENERATED]
    return tuple(combinations[place] for place in order)


def generated_split(part: str) -> tuple[tuple[str, ...], ...]:
    """Segments of the applications of `train` or `test`."""
    return generated()[:TRAINED] if part == TRAIN else generated()[TRAINED:]
