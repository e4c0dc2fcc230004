"""A recorded cluster, and one in memory in place of Slurm's commands."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadmaster.platform.steering.core import RefusedError, SilentError
from loadmaster.platform.steering.slurm.records import parse_mark

RECORDED = Path(__file__).parents[3] / "data/slurm/cluster-22.05.json"


def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RECORDED.read_text())
    return found


def job(id: int, **fields: Any) -> dict[str, Any]:
    """A job of one GPU that the begin time of `job_submit.lua` lets wait."""
    record = {
        "job_id": id, "user_name": "ada", "job_state": "PENDING", "state_reason": "BeginTime",
        "tasks": 1, "node_count": 1, "cpus": 1, "submit_time": 1000, "eligible_time": 1120,
        "start_time": 0, "end_time": 0, "nodes": "", "gres_detail": [], "required_nodes": "",
        "requeue": True, "admin_comment": "loadmaster", "tres_per_node": "gres:gpu:1",
    }  # fmt: skip
    return {**record, **fields}


def node(name: str, gpus: int = 4, **fields: Any) -> dict[str, Any]:
    record = {
        "name": name, "gres": f"gpu:v100:{gpus},shard:v100:{4 * gpus}", "cpus": 16,
        "state": "idle", "state_flags": [], "partitions": ["gpu"],
    }  # fmt: skip
    return {**record, **fields}


class FakeSlurm:
    """The interface of `SlurmCommands` over jobs in memory; jobs that are started run at once."""

    def __init__(self, *jobs: dict[str, Any], nodes: Sequence[dict[str, Any]] = ()) -> None:
        self.records = {one["job_id"]: one for one in jobs}
        self.machines = list(nodes) or [node("n1")]
        self.now_s = 1001.0
        self.silent = self.starts_nothing = False
        self.refuses, self.dies_after = set[int](), None
        self.sent: list[tuple[Any, ...]] = []

    def jobs(self) -> list[dict[str, Any]]:
        if self.silent:
            raise SilentError("engine", "squeue: Unable to contact slurm controller")
        return [dict(one) for one in self.records.values()]

    def nodes(self) -> list[dict[str, Any]]:
        return self.machines

    def update(self, jobs: Sequence[int], **fields: str) -> None:
        if self.refuses & set(jobs):
            raise RefusedError("Access/permission denied")
        self.sent.append(("update", *jobs, fields))
        for id in jobs:
            self._update(self.records[id], fields)

    def _update(self, one: dict[str, Any], fields: dict[str, str]) -> None:
        if "admincomment" in fields:
            one["admin_comment"] = fields["admincomment"]
        if "reqnodelist" in fields:
            one["required_nodes"] = fields["reqnodelist"]
        if (begin := fields.get("starttime")) is None:
            return
        delay_s = 0 if begin == "now" else int(begin.removeprefix("now+"))
        one["eligible_time"] = self.now_s + delay_s
        if delay_s == 0 and not self.starts_nothing:
            mark = parse_mark(one["admin_comment"])
            names = one["required_nodes"] or "n1"
            one.update(job_state="RUNNING", start_time=self.now_s, nodes=names)
            assert mark is not None

    def requeue(self, job: int) -> None:
        if self.silent:
            raise SilentError("engine", "slurm_requeue: Connection refused")
        self.sent.append(("requeue", job))
        self.records[job].update(
            job_state="PENDING", state_reason="BeginTime", nodes="", start_time=0,
            submit_time=self.now_s, eligible_time=self.now_s + 120,
        )  # fmt: skip

    def finish(self, job: int, state: str = "COMPLETED") -> None:
        self.records[job].update(job_state=state, end_time=self.now_s)
