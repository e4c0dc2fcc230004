"""Jobs and nodes of Slurm's JSON, of the data parsers of 22.05 and of 23.11 and later."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PENDING, RUNNING, COMPLETING = "PENDING", "RUNNING", "COMPLETING"
HOLDS_GPUS = frozenset({RUNNING, COMPLETING, "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT"})
ENDED = frozenset({"COMPLETED"})
MARK = "loadmaster"  # first word of AdminComment of a job whose begin time is not its user's
_DEMAND = re.compile(r"(?:gres[:/])?(gpu|shard)(?::([A-Za-z]\w*))?[:=](\d+)")
_ON_NODE = re.compile(r"(gpu|shard)(?::[\w-]+)?:(\d+)")
_GRES = re.compile(r"(gpu|shard)(?::([A-Za-z]\w*))?:(\d+)")
_USABLE = frozenset({"idle", "mixed", "allocated", "completing"})
_HARMLESS = frozenset({"completing", "cloud", "powered_on", "dynamic_norm", "planned"})


def number(value: Any) -> float:
    """A number; 0 where it is not set. Later parsers write {"set": ..., "number": ...}."""
    if isinstance(value, Mapping):
        value = value.get("number") if value.get("set") and not value.get("infinite") else 0
    return float(value) if isinstance(value, (int, float)) else 0.0


def words(value: Any) -> tuple[str, ...]:
    """States or flags, which later parsers write as a list."""
    if isinstance(value, str):
        return (value,) if value else ()
    return tuple(str(one) for one in value or ())


def hosts(text: str) -> list[str]:
    """The names in a host list, such as `n[1-3,07],login`."""
    found = list[str]()
    for part in re.findall(r"[^,\[]+(?:\[[^\]]*\][^,\[]*)*", text):
        names = [""]
        for plain, ranges in re.findall(r"([^\[]+)|\[([^\]]*)\]", part):
            ends = (
                [plain] if plain else [one for piece in ranges.split(",") for one in _range(piece)]
            )
            names = [name + end for name in names for end in ends]
        found += names
    return found


def _range(text: str) -> list[str]:
    first, dash, last = text.partition("-")
    if not dash:
        return [first]
    return [f"{k:0{len(first)}d}" for k in range(int(first), int(last) + 1)]


@dataclass(frozen=True)
class Mark:
    """What the steerer keeps of a job in its AdminComment."""

    first_submit_s: float = 0.0  # a requeued job gets a new submit time
    ran_s: float = 0.0  # before its present run
    placed: tuple[tuple[str, int], ...] = ()  # machines and instances of the last start
    reason: str = ""

    def text(self) -> str:
        parts = [MARK, f"first_submit={self.first_submit_s:.0f}", f"ran_s={self.ran_s:.0f}"]
        if self.placed:
            parts.append("placed=" + "+".join(f"{name}:{count}" for name, count in self.placed))
        return " ".join(parts) + (f" | {self.reason}" if self.reason else "")


def parse_mark(comment: str) -> Mark | None:
    """Read an AdminComment; None if it is not the steerer's. Damaged values count as missing."""
    head, _, reason = comment.partition(" | ")
    first, *rest = head.split() or [""]
    if first != MARK:
        return None
    values = dict(part.split("=", 1) for part in rest if "=" in part)
    placed = [one.rsplit(":", 1) for one in values.get("placed", "").split("+") if ":" in one]
    return Mark(
        _seconds(values.get("first_submit", "")),
        _seconds(values.get("ran_s", "")),
        tuple((name, int(count)) for name, count in placed if count.isdigit()),
        reason,
    )


def _seconds(text: str) -> float:
    return float(text) if text.isdigit() else 0.0


@dataclass(frozen=True)
class SlurmJob:
    """A job that uses GPUs or shards of them."""

    id: int
    user: str
    partition: str
    states: tuple[str, ...]
    reason: str  # for which it waits
    instances: int
    per_instance: tuple[str, int]  # gpu or shard, and how many
    gpu_type: str | None
    cpus: float  # of all instances
    submit_s: float
    eligible_s: float
    start_s: float
    end_s: float
    nodes: tuple[str, ...]
    used: tuple[tuple[str, int], ...]  # gpu or shard and how many, by node
    required: str  # host list
    constrained: bool  # by its user, in a way that states of the endpoint do not have
    requeues: bool
    comment: str
    mark: Mark | None

    @property
    def pending(self) -> bool:
        return PENDING in self.states and COMPLETING not in self.states

    @property
    def holds_gpus(self) -> bool:
        return not self.pending and bool(HOLDS_GPUS & set(self.states))

    @property
    def first_submit_s(self) -> float:
        return (self.mark.first_submit_s if self.mark else 0.0) or self.submit_s

    @property
    def ran_s(self) -> float:
        return self.mark.ran_s if self.mark else 0.0


def parse_job(record: Mapping[str, Any], owner: str = "user") -> SlurmJob | None:
    """A job of squeue's JSON; None if it uses no GPU. `owner`: user, account or name."""
    demand = _demand(record)
    if demand is None:
        return None
    instances, per_instance, gpu_type = demand
    mark = parse_mark(str(record.get("admin_comment") or ""))
    required = str(record.get("required_nodes") or "")
    array = number(record.get("array_job_id")) > 0 or number(record.get("het_job_id")) > 0
    constrained = array or any(
        record.get(name)
        for name in ("dependency", "features", "excluded_nodes", "licenses", "resv_name", "prefer")
    )
    return SlurmJob(
        int(number(record.get("job_id"))),
        str(record.get("user_name" if owner == "user" else owner) or ""),
        str(record.get("partition") or ""),
        tuple(one.upper() for one in words(record.get("job_state"))),
        str(record.get("state_reason") or ""),
        instances,
        per_instance,
        gpu_type,
        number(record.get("cpus")),
        number(record.get("submit_time")),
        number(record.get("eligible_time")),
        number(record.get("start_time")),
        number(record.get("end_time")),
        tuple(hosts(str(record.get("nodes") or ""))),
        tuple(_on_node(str(one)) for one in record.get("gres_detail") or ()),
        required,
        constrained or (bool(required) and mark is None),
        bool(record.get("requeue")),
        str(record.get("admin_comment") or ""),
        mark,
    )


def _demand(record: Mapping[str, Any]) -> tuple[int, tuple[str, int], str | None] | None:
    """Instances, GPUs or shards of each, and the only type of GPU that the job takes."""
    tasks = max(int(number(record.get("tasks"))), 1)
    count = max(int(number(record.get("node_count"))), 1)
    for name, instances in (
        ("tres_per_task", tasks),
        ("tres_per_node", count),
        ("tres_per_job", 1),
    ):
        if match := _DEMAND.search(str(record.get(name) or "")):
            kind, gpu_type, amount = match[1], match[2], int(match[3])
            return instances, (kind, amount), gpu_type.upper() if gpu_type else None
    return None


def _on_node(text: str) -> tuple[str, int]:
    match = _ON_NODE.search(text)
    return (match[1], int(match[2])) if match else ("gpu", 0)


@dataclass(frozen=True)
class SlurmNode:
    """A node with GPUs."""

    name: str
    gpu: str  # type, or nothing
    gpus: int
    shards: int  # of all its GPUs
    cpus: float
    usable: bool
    partitions: tuple[str, ...]


def parse_node(record: Mapping[str, Any]) -> SlurmNode | None:
    """A node of sinfo's JSON; None if it has no GPU."""
    gpu, gpus, shards = "", 0, 0
    for kind, name, amount in _GRES.findall(str(record.get("gres") or "")):
        if kind == "shard":
            shards += int(amount)
        else:
            gpu, gpus = gpu or name.upper(), gpus + int(amount)
    if not gpus:
        return None
    states = {one.lower() for one in words(record.get("state"))}
    flags = {one.lower() for one in words(record.get("state_flags"))}
    return SlurmNode(
        str(record["name"]),
        gpu,
        gpus,
        shards,
        number(record.get("cpus")),
        bool(states & _USABLE) and not (states - _USABLE | flags) - _HARMLESS,
        words(record.get("partitions")),
    )


def parse_all(
    jobs: Sequence[Mapping[str, Any]], nodes: Sequence[Mapping[str, Any]], owner: str = "user"
) -> tuple[list[SlurmJob], list[SlurmNode]]:
    found = [parse_job(one, owner) for one in jobs], [parse_node(one) for one in nodes]
    return [one for one in found[0] if one], [one for one in found[1] if one]
