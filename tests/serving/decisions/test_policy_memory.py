"""What policies remember of tenants: stored, bounded, restored, logged, and read by its format."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadmaster.envs import registry
from loadmaster.platform.replay.decision_log import replay_log
from loadmaster.serving.decisions import tenant_database
from loadmaster.serving.decisions.policy_memory import (
    MAX_FORMATS,
    MAX_NUMBERS,
    MAX_TEXT,
    EncodedStep,
    read_memory,
    with_line,
    write_memory,
)
from loadmaster.serving.decisions.request import Decided, PolicyRef, decode_reply, encode_reply
from loadmaster.serving.decisions.tenant_database import TenantDatabase, TenantRows
from loadmaster.serving.monitoring.log_files import read_log
from loadmaster.serving.worker.rpc import PolicyCall
from loadmaster.serving.worker.worker import PolicyRunner
from tests.serving import toy
from tests.serving.conftest import LocalService, Start

RAW = b'{"state":{"load":42,"replicas":3}}'


def numbers(*values: float) -> Any:
    return np.array(values, np.float32)


def counts(here: LocalService, tenant: str, times: int = 1) -> list[float]:
    """Replicas of so many decisions of a policy that counts them."""
    found = [here.decide(tenant=tenant) for _ in range(times)]
    assert all(one["source"] == "policy" for one in found)
    return [one["decision"]["replicas"] for one in found]


def logged_memories(here: LocalService) -> list[str | None]:
    """What was remembered before each decision, after the service has ended."""
    here.close()
    return [row.memory for row in read_log(here.folder / "kept" / "log" / "toy")]


def test_memory_is_kept_bit_by_bit() -> None:
    kept = np.random.default_rng(1).normal(size=300).astype(np.float32)
    line = write_memory("aware-1", kept)
    found = read_memory(line, "aware-1")
    assert found is not None
    assert found.tobytes() == kept.tobytes()
    assert found.flags.writeable
    assert read_memory(line, "aware-2") is None
    assert read_memory("", "aware-1") is None
    assert len(write_memory("a" * 64, np.zeros(MAX_NUMBERS, np.float32))) * MAX_FORMATS < MAX_TEXT


@pytest.mark.parametrize(
    "damage", ["a-1", "a-1 ", "a-1 !!!!", "a-1 AAA", "a-1 AAAAAAA=", "a-1 AADAfw=="]
)
def test_damaged_memory_is_ignored(damage: str) -> None:
    found = read_memory(damage, "a-1")
    assert found is None or len(found) == 0


@pytest.mark.parametrize("wrong", [np.zeros((2, 2)), np.zeros(MAX_NUMBERS + 1), np.zeros(())])
def test_a_memory_that_is_no_short_row_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="expected a row of at most"):
        write_memory("a-1", wrong.astype(np.float32))


def test_a_memory_that_is_not_finite_is_refused() -> None:
    with pytest.raises(FloatingPointError):
        write_memory("a-1", numbers(1, np.nan))


def test_lines_replace_those_of_their_format_and_the_oldest() -> None:
    first, *others, last = (write_memory(f"f-{n}", numbers(n)) for n in range(MAX_FORMATS + 1))
    memory = ""
    for line in (first, *others):
        memory = with_line(memory, line)
    assert memory == "\n".join([first, *others])
    again = write_memory("f-0", numbers(9))
    assert with_line(memory, again) == "\n".join([*others, again])
    assert with_line(memory, last) == "\n".join([*others, last])


def test_calls_and_replies_carry_memory() -> None:
    line = write_memory("a-1", numbers(1, 2))
    for memory in ("", line):
        call = PolicyCall("v", "folder", RAW, 7.0, memory)
        assert PolicyCall.decode(call.encode()) == call
        for step in (None, EncodedStep("a-2", "v", 3, "AAAA")):
            policy = PolicyRef(name="p", version="v")
            decided = Decided({}, {}, "policy", None, "", policy, (), {}, memory, step)
            assert decode_reply(encode_reply(decided)) == decided


def test_the_runner_gives_a_policy_only_what_it_can_read(tmp_path: Path) -> None:
    folder = toy.make_bundle(tmp_path / "b", does="counts")
    runner = PolicyRunner(toy.ENDPOINT, "hold")
    version = runner.load(str(folder)).version
    known, other = (write_memory(name, numbers(6, 0)) for name in ("toy-1", "toy-2"))
    for memory, expected in (("", 1), (known, 7), (other, 1), (f"{other}\n{known}", 7)):
        decided = runner.decide(RAW, version, str(folder), memory)
        assert isinstance(decided, Decided)
        assert decided.decision == {"replicas": expected}
        assert decided.memory == write_memory("toy-1", numbers(expected, 0.1 * expected))
        proposed = runner.propose(RAW, version, str(folder), memory)
        assert (proposed.decision, proposed.memory) == (decided.decision, decided.memory)
    by_rule = runner.decide(RAW, "", "", known)
    assert isinstance(by_rule, Decided)
    assert by_rule.memory == ""


def test_a_memory_that_cannot_be_stored_lets_the_rule_decide(start: Start) -> None:
    here = start("forgets")
    for _ in range(2):
        found = here.decide(tenant="a")
        assert (found["source"], found["cause"]) == ("fallback", "exception")
    assert logged_memories(here) == [None, None]


def test_tenants_have_memories_of_their_own(start: Start) -> None:
    here = start("counts")
    assert counts(here, "a", 3) == [1, 2, 3]
    assert counts(here, "b", 2) == [1, 2]
    assert counts(here, "a") == [4]
    repeated = [here.decide(tenant="a", request_id="r-1")["decision"] for _ in range(2)]
    assert repeated == [{"replicas": 5}] * 2, "a repeated request is not decided again"
    assert counts(here, "a") == [6]


def test_policies_without_memory_store_none(start: Start) -> None:
    here = start()
    here.decide(tenant="a")
    here.decide(tenant="a")
    assert logged_memories(here) == [None, None]


@pytest.mark.slow
def test_memory_survives_a_restart_and_a_kill(start: Start) -> None:
    here = start("counts")
    assert counts(here, "a", 3) == [1, 2, 3]
    here.close()
    here = start("counts")
    assert counts(here, "a", 2) == [4, 5]
    here.status()  # waits until changes are written, which are collected for 50 ms
    here.kill()
    assert counts(start("counts"), "a") == [6]


def test_tenants_that_leave_memory_keep_theirs(start: Start) -> None:
    here = start("counts", tenants={"most": 2})
    for tenant in ("a", "b", "c", "d"):
        assert counts(here, tenant) == [1]
    assert counts(here, "a", 2) == [2, 3]


def test_a_bundle_of_another_format_begins_anew_and_keeps_the_other(
    start: Start, tmp_path: Path
) -> None:
    here = start("counts")
    assert counts(here, "a", 2) == [1, 2]
    toy.make_bundle(tmp_path / "same", "same", does="counts", extra=10)
    toy.make_bundle(tmp_path / "other", "other", does="counts as toy-2", extra=20)
    serve = {"to": "serving"}
    assert here.post("promote", {"bundle": str(tmp_path / "same"), **serve}).status == 200
    assert counts(here, "a") == [13], "bundles of one format share the memory"
    assert here.post("promote", {"bundle": str(tmp_path / "other"), **serve}).status == 200
    assert counts(here, "a", 2) == [21, 22]
    assert here.post("rollback").status == 200
    assert counts(here, "a") == [14]


def test_a_policy_in_the_shadow_remembers_while_the_rule_acts(start: Start, tmp_path: Path) -> None:
    here = start("counts")
    for expected in (1, 2):
        found = here.decide(tenant="a", mode="shadow")
        assert (found["source"], found["shadow"]["decision"]) == (
            "fallback",
            {"replicas": expected},
        )
    assert counts(here, "a") == [3]
    toy.make_bundle(tmp_path / "next", "next", does="counts", extra=50)
    here.post("promote", {"bundle": str(tmp_path / "next"), "to": "shadow"})
    assert counts(here, "a", 3) == [4, 5, 6], "the shadow's is dropped where both have one format"


def test_logged_decisions_are_repeated_exactly(start: Start) -> None:
    here = start("counts")
    counts(here, "a", 4)
    counts(here, "b", 2)
    here.decide(tenant="a", mode="shadow")
    bundle = here.folder / "bundle-counts"
    here.close()
    rows = list(read_log(here.folder / "kept" / "log" / "toy"))
    assert sum(row.memory is None for row in rows) == 2, "the first ones of each tenant"
    replayed = replay(rows, bundle)
    assert (replayed.replayed, replayed.identical) == (8, 8)
    without = replay([row._replace(memory=None) for row in rows], bundle)
    assert without.different == 5


def replay(rows: Any, bundle: Path) -> Any:
    system = registry.System("toy", "", "a toy", package=toy.__name__)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "SYSTEMS", (*registry.SYSTEMS, system))
        return replay_log(rows, {"toy": bundle}, lambda _: None)


def test_memories_on_disk_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenant_database, "PRUNE_S", -1.0)
    size, largest = 80, write_memory("a-1", np.ones(MAX_NUMBERS, np.float32))
    database = TenantDatabase(tmp_path / "t.sqlite", 60.0, 60.0, disk_bytes=1 << 20)
    for number in range(size):
        rows = TenantRows(memories=[(f"t{number}", float(number), largest)])
        asyncio.run(database.write(rows))
    asyncio.run(database.write(TenantRows(memories=[("last", 1e9, largest)])))
    found = [bool(database.load(f"t{number}", 0.0).memory) for number in range(size)]
    assert database.load("last", 0.0).memory == largest
    assert sum(found) * len(largest) < 1 << 20
    assert not found[0]
    database.close()
