"""Slurm as an engine of jobs: starts, begin times, stops, requeues, outcomes, faults."""

import os
from pathlib import Path
from typing import Any

import pytest

from loadmaster.envs.errors import InputError
from loadmaster.platform.steering.core import Mode, RefusedError, SilentError
from loadmaster.platform.steering.jobs import JobSteerer, Limits
from loadmaster.platform.steering.recommenders import find_recommender
from loadmaster.platform.steering.slurm.commands import SlurmCommands
from loadmaster.platform.steering.slurm.engine import SPEC, SlurmEngine, SlurmSettings
from loadmaster.platform.steering.slurm.records import parse_mark
from tests.platform.steering.slurm.parts import FakeSlurm, job, node
from tests.platform.steering.test_jobs import Decider

RULE = "las-consolidate"


class Steered:
    """A fake cluster, and a steerer of it."""

    def __init__(
        self, slurm: FakeSlurm, decider: Any = None, mode: Mode = "act", **settings: Any
    ) -> None:
        self.slurm = slurm
        engine = SlurmEngine(slurm, SlurmSettings(**settings), since_s=0.0)  # type: ignore[arg-type]
        self.engine, recommender = engine, decider or find_recommender([RULE], SPEC.endpoint)
        self.steerer = JobSteerer(recommender, mode, Limits())

    def step(self, seconds: float = 1.0) -> Any:
        self.slurm.now_s += seconds
        return self.steerer.step(self.engine, self.slurm.now_s)


def start(job: str, **machines: int) -> dict[str, Any]:
    where = [{"machine": name, "instances": count} for name, count in machines.items()]
    return {"job": job, "placements": where}


def test_rule_starts_what_fits_and_puts_off_the_rest() -> None:
    slurm = FakeSlurm(*(job(k, tres_per_node="gres:gpu:2") for k in (1, 2, 3)))
    steered = Steered(slurm)
    result = steered.step()
    assert result.commands == ("start 1 on n1 x1", "start 2 on n1 x1")
    assert [slurm.records[k]["job_state"] for k in (1, 2, 3)] == ["RUNNING", "RUNNING", "PENDING"]
    mark = parse_mark(slurm.records[1]["admin_comment"])
    assert mark is not None
    assert (mark.first_submit_s, mark.placed) == (1000, (("n1", 1),))
    assert "starts on n1" in mark.reason
    steered.step(59)  # 3 was submitted 60 s ago, of its 120 s
    assert slurm.records[3]["eligible_time"] == slurm.now_s + 120
    slurm.finish(1)
    assert steered.step().commands == ("start 3 on n1 x1",)


@pytest.mark.parametrize("mode", ["watch", "shadow"])
def test_nothing_is_changed_without_act(mode: Mode) -> None:
    slurm = FakeSlurm(job(1), job(2))
    result = Steered(slurm, mode=mode).step(100)
    assert (result.result, len(result.commands)) == ("dry-run", 2)
    assert slurm.sent == []


def test_many_waiting_jobs_are_put_off_by_one_command() -> None:
    slurm = FakeSlurm(*(job(k, tres_per_node="gres:gpu:4") for k in range(1, 31)))
    steered = Steered(slurm, Decider(start=[], stop=[], wait=30))
    steered.step(70)
    assert len(slurm.sent) == 30  # the first submit time of each
    steered.step(70)
    assert len(slurm.sent) == 31
    assert all(one["eligible_time"] == slurm.now_s + 120 for one in slurm.records.values())


def test_silent_service_lets_begin_times_pass() -> None:
    slurm = FakeSlurm(job(1, tres_per_node="gres:gpu:4"), job(2, tres_per_node="gres:gpu:4"))
    decider = Decider(start=[], stop=[], wait=2)
    steered = Steered(slurm, decider)
    steered.step(70)
    begins = slurm.records[1]["eligible_time"]
    decider.decision = None
    for _ in range(60):
        assert steered.step(2).silent in (None, "recommender")
    assert slurm.records[1]["eligible_time"] == begins <= slurm.now_s


def test_job_that_stops_keeps_its_first_submit_time_and_its_run_time() -> None:
    slurm = FakeSlurm(job(1))
    decider = Decider(start=[start("1", n1=1)], stop=[], wait=0)
    steered = Steered(slurm, decider, preempt=True)
    steered.step()
    decider.decision = {"start": [], "stop": ["1"], "wait": 1}
    assert steered.step(30).commands == ("stop 1",)
    assert slurm.records[1]["submit_time"] == slurm.now_s
    decider.decision = {"start": [start("1", n1=1)], "stop": [], "wait": 0}
    observed = steered.engine.observe(slurm.now_s)
    assert observed.state is not None
    (record,) = observed.state["jobs"]
    assert (record["age_s"], record["ran_s"]) == (slurm.now_s - 1000, 30)


def test_requeued_job_starts_only_after_its_last_run_has_ended() -> None:
    """A restart within half a second was taken for ended by Slurm 22.05, and the job lost."""
    slurm = FakeSlurm(job(1))
    decider = Decider(start=[start("1", n1=1)], stop=[], wait=0)
    Steered(slurm, decider).step()
    slurm.now_s += 10
    slurm.requeue(1)
    steered = Steered(slurm, decider, settle_s=5)  # another process, which has not seen the run
    for _ in range(5):
        assert steered.step().commands == ()
    assert slurm.records[1]["job_state"] == "PENDING"
    assert steered.step().commands == ("start 1 on n1 x1",)
    assert slurm.records[1]["job_state"] == "RUNNING"


def test_stops_are_dropped_without_preempt_and_jobs_placed_in_the_next_step() -> None:
    running = job(1, job_state="RUNNING", nodes="n1", tres_per_node="gres:gpu:4", start_time=1000)
    slurm = FakeSlurm(running, job(2, tres_per_node="gres:gpu:4"))
    decider = Decider(start=[start("2", n1=1)], stop=["1"], wait=1)
    steered = Steered(slurm, decider)
    assert (steered.step().commands, slurm.records[2]["job_state"]) == ((), "PENDING")
    observed = steered.engine.observe(slurm.now_s)
    assert observed.state is not None
    assert observed.state["ask"] == "placing"


def test_only_jobs_that_may_be_requeued_are_stopped() -> None:
    fixed = job(1, job_state="RUNNING", nodes="n1", start_time=1000, requeue=False)
    array = job(2, job_state="RUNNING", nodes="n2", start_time=1000, array_job_id=2)
    slurm = FakeSlurm(fixed, array, job(3), nodes=[node("n1", 1), node("n2", 1), node("n3", 1)])
    decider = Decider(start=[start("3", n1=1)], stop=["1", "2"], wait=2)
    assert Steered(slurm, decider, preempt=True).step().commands == ()
    assert not any(one[0] == "requeue" for one in slurm.sent)


def test_refused_start_is_reported_and_the_others_run() -> None:
    slurm = FakeSlurm(job(1), job(2))
    slurm.refuses = {1}
    result = Steered(slurm).step()
    assert (result.result, slurm.records[2]["job_state"]) == ("refused", "RUNNING")
    assert any("denied" in one for one in result.messages)


def test_controller_that_is_silent_is_degraded_and_nothing_is_lost() -> None:
    slurm = FakeSlurm(job(1))
    steered = Steered(slurm)
    slurm.silent = True
    assert steered.step().silent == "engine"
    slurm.silent = False
    assert steered.step().commands == ("start 1 on n1 x1",)


def test_steerer_that_was_killed_between_commands_goes_on_from_what_is_seen() -> None:
    slurm = FakeSlurm(job(1), job(2))

    def killed(jobs: Any, **fields: str) -> None:
        if 2 in jobs:
            raise KeyboardInterrupt
        FakeSlurm.update(slurm, jobs, **fields)

    slurm.update = killed  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        Steered(slurm).step()
    del slurm.update  # type: ignore[method-assign]
    assert Steered(slurm).step().commands == ("start 2 on n1 x1",)
    assert [one["job_state"] for one in slurm.records.values()] == ["RUNNING", "RUNNING"]


def test_end_gives_waiting_jobs_back_to_slurm() -> None:
    slurm = FakeSlurm(job(1), job(2, features="big"), job(3, admin_comment="", eligible_time=4600))
    Steered(slurm).engine.release()
    assert [one["job_state"] for one in slurm.records.values()] == ["RUNNING", "PENDING", "PENDING"]


def test_outcomes_are_those_of_completed_jobs_once() -> None:
    slurm = FakeSlurm(job(1), job(2))
    decider = Decider(start=[start("1", n1=1), start("2", n1=1)], stop=[], wait=0)
    steered = Steered(slurm, decider)
    steered.step()
    slurm.now_s += 9
    slurm.finish(1)
    slurm.finish(2, "CANCELLED")
    steered.step()
    steered.step()
    ((id, outcome),) = decider.outcomes
    assert id == "id-1"
    assert outcome == {"job": "1", "completion_s": slurm.now_s - 2 - 1000, "run_s": 9.0}
    observed = steered.engine.observe(slurm.now_s)
    assert observed.state is None  # nothing waits or runs


def test_cluster_without_gpus_is_one_line() -> None:
    slurm = FakeSlurm(job(1), nodes=[node("n1", gres="")])
    with pytest.raises(InputError, match="no node with GPUs"):
        Steered(slurm).step()


def script(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def commands(tmp_path: Path) -> SlurmCommands:
    """Slurm's commands as scripts of a test, in its folder."""
    return SlurmCommands(0.5, {"PATH": f"{tmp_path}:{os.environ['PATH']}"})


def test_commands_that_fail(tmp_path: Path, commands: SlurmCommands) -> None:
    script(tmp_path, "squeue", "echo 'slurm_load_jobs error: Unable to contact slurm' >&2; exit 1")
    with pytest.raises(SilentError, match="Unable to contact"):
        commands.jobs()
    script(tmp_path, "squeue", """echo '{"errors": [{"error": "no answer"}], "jobs": []}'""")
    with pytest.raises(SilentError, match="no answer"):
        commands.jobs()
    script(tmp_path, "squeue", "exec sleep 5")
    with pytest.raises(SilentError, match="within"):
        commands.jobs()
    script(tmp_path, "squeue", "echo '{\"jobs\": 3'")
    with pytest.raises(SilentError):
        commands.jobs()
    script(tmp_path, "scontrol", "echo 'Access/permission denied' >&2; exit 1")
    with pytest.raises(RefusedError, match="denied"):
        commands.update([1], starttime="now")
    script(tmp_path, "scontrol", "echo 'slurm_requeue: Connection refused' >&2; exit 1")
    with pytest.raises(SilentError):
        commands.requeue(1)


def test_commands_that_are_not_there_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(InputError, match="squeue is not found"):
        SlurmCommands(1.0).jobs()
