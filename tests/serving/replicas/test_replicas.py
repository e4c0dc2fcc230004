"""Several gateways of one service: ownership of tenants, control state, moves, kills, leases.

The gateways and the control process run in this process, with the links between them.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import build_settings
from loadmaster.serving.http.app_factory import Service, assemble
from loadmaster.serving.replicas import control as control_module
from loadmaster.serving.replicas import replica as replica_module
from loadmaster.serving.replicas.control import Control
from loadmaster.serving.replicas.control_client import ControlClient, find_control
from loadmaster.serving.replicas.control_files import lock_folder
from loadmaster.serving.settings import ServeSettings
from loadmaster.serving.worker.worker import SystemWorker
from tests.serving import toy
from tests.serving.asgi import Answer, send_request

HOST = "127.0.0.1"
TENANTS = [f"t{number}" for number in range(40)]
pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Cluster:
    """A control process and gateways, in one event loop."""

    def __init__(self, folder: Path) -> None:
        bundle = toy.make_bundle(folder / "bundle")
        one = {"endpoint": toy.REFERENCE, "bundle": str(bundle), "deadline_ms": 10_000}
        one["guard"] = {"flaps": 2}
        values = {"systems": {"toy": one}, "folder": folder / "kept", "listen": False}
        self.settings = build_settings(ServeSettings, values)
        self.worker = SystemWorker("toy", toy.REFERENCE, "hold", str(bundle), warm=False)
        self.control: Control | None = None
        self.gateways: list[Service] = []
        self._stacks: dict[Service, AsyncExitStack] = {}

    async def start_control(self) -> None:
        lock = lock_folder(self.settings.folder)
        assert lock is not None
        self.control = Control(self.settings, lock, {"toy": self.worker})
        await self.control.start(HOST)

    async def where(self) -> list[Any]:
        if self.control is None or self.control.address is None:
            raise ConnectionError("no control process")
        return [*self.control.address, self.control.key]

    async def add(self) -> Service:
        client = ControlClient(find_control(self.where))
        service = Service(self.settings, {"toy": self.worker}, client, HOST, self.where)
        self._stacks[service] = AsyncExitStack()
        await self._stacks[service].enter_async_context(service.lifespan(service.app))
        self.gateways.append(service)
        while not all(system.ready for system in service.systems.values()):
            await asyncio.sleep(0.01)
        await self.settled()
        return service

    async def settled(self) -> None:
        """Wait until every gateway is a member for all of them."""
        async with asyncio.timeout(20):
            while not all(len(self.owners(one)) == len(self.gateways) for one in self.gateways):
                await asyncio.sleep(0.02)

    def owners(self, service: Service) -> set[str]:
        places = {service.place(tenant) for tenant in TENANTS}
        return {place for place in places if place is not None}

    async def remove(self, service: Service) -> None:
        """Stop a gateway as Serve does."""
        self.gateways.remove(service)
        await self._stacks.pop(service).aclose()

    async def close(self) -> None:
        for service in list(self.gateways):
            await self.remove(service)
        if self.control is not None:
            await self.control.close()


@asynccontextmanager
async def cluster(folder: Path, gateways: int) -> AsyncIterator[Cluster]:
    made = Cluster(folder)
    await made.start_control()
    try:
        for _ in range(gateways):
            await made.add()
        yield made
    finally:
        await made.close()


async def post(service: Service, verb: str, body: Any) -> Answer:
    return await send_request(service.app, "POST", f"/v1/toy/{verb}", body)


async def decide(service: Service, tenant: str, load: float = 42, replicas: int = 3) -> Any:
    state = {"load": load, "replicas": replicas}
    answer = await post(service, "decide", {"state": state, "tenant": tenant})
    assert answer.status == 200, answer
    return answer.json


async def flap(service: Service, tenant: str, times: int) -> Any:
    for turn in range(times):
        response = await decide(service, tenant, load=10 if turn % 2 else 30, replicas=2)
    return response


HELD = ["flap: web from 1 to 2"]


async def test_tenants_are_spread_and_every_gateway_answers_for_all(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3) as made:
        for number, tenant in enumerate(TENANTS):
            assert (await decide(made.gateways[number % 3], tenant))["source"] == "policy"
        await asyncio.sleep(0.2)  # changes are collected before they are written
        statuses = [
            (await send_request(one.app, "GET", "/v1/toy/status")).json for one in made.gateways
        ]
        assert {status["tenants"]["known"] for status in statuses} == {len(TENANTS) + 1}
        for tenant in TENANTS[:6]:  # whichever gateway is called
            for one in made.gateways:
                await decide(one, tenant)
            listed = await send_request(
                made.gateways[0].app, "GET", f"/v1/toy/decisions?tenant={tenant}"
            )
            assert len(listed.json["decisions"]) == 4


async def test_the_guard_of_a_tenant_holds_whichever_gateway_is_called(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2) as made:
        for tenant in TENANTS[:4]:
            for turn in range(6):
                one = made.gateways[turn % 2]
                response = await decide(one, tenant, load=10 if turn % 2 else 30, replicas=2)
            assert response["guard"] == HELD


async def test_guard_windows_move_with_their_tenant(tmp_path: Path) -> None:
    async with cluster(tmp_path, 1) as made:
        first = made.gateways[0]
        for tenant in TENANTS:
            await flap(first, tenant, 5)
        second = await made.add()
        moved = [tenant for tenant in TENANTS if second.place(tenant) == ""]
        assert 5 < len(moved) < 35
        for tenant in TENANTS:
            assert (await flap(second, tenant, 6))["guard"] == HELD
        await made.remove(first)
        for tenant in TENANTS:
            response = await decide(second, tenant, load=10, replicas=2)
            assert response["guard"] == HELD


async def test_no_request_fails_while_gateways_come_and_go(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2) as made:
        stopped, counts, stays = asyncio.Event(), [0], made.gateways[0]

        async def load(tenant: str) -> None:
            while not stopped.is_set():
                response = await decide(stays, tenant)
                counts[0] += 1
                assert response["source"] == "policy"
                await asyncio.sleep(0.005)

        tasks = [asyncio.create_task(load(tenant)) for tenant in TENANTS[:10]]
        for _ in range(3):
            added = await made.add()
            await asyncio.sleep(0.1)
            await made.remove(added)
        stopped.set()
        await asyncio.gather(*tasks)
        assert counts[0] > 100


@pytest.mark.slow
@pytest.mark.parametrize("action", ["pause", "promote", "rollback"])
async def test_actions_reach_all_gateways_before_their_next_decision(
    action: str, tmp_path: Path
) -> None:
    other = toy.make_bundle(tmp_path / "other", extra=1)
    async with cluster(tmp_path, 3) as made:
        if action == "rollback":
            await post(made.gateways[0], "promote", {"bundle": str(other), "to": "serving"})
        before = (await decide(made.gateways[0], "t0"))["policy"]["version"]
        confirmed = asyncio.Event()
        late: list[Any] = []

        def wrong(response: Any) -> bool:
            if action == "pause":
                return bool(response["cause"] != "paused")
            return bool(response["policy"]["version"] == before)

        async def load(tenant: str, service: Service) -> None:
            seen_new = False
            for _ in range(200):
                after = confirmed.is_set()
                response = await decide(service, tenant)
                if after and wrong(response):
                    late.append(response)
                assert not (seen_new and wrong(response))  # versions in order within a tenant
                seen_new = seen_new or not wrong(response)
                await asyncio.sleep(0)

        tasks = [
            asyncio.create_task(load(tenant, made.gateways[number % 3]))
            for number, tenant in enumerate(TENANTS[:9])
        ]
        await asyncio.sleep(0.1)
        body = {"bundle": str(other), "to": "serving"} if action == "promote" else {}
        answer = await post(made.gateways[1], action, body)
        confirmed.set()
        assert answer.status == 200
        await asyncio.gather(*tasks)
        assert not late


async def test_estimates_and_profiles_reach_the_owners_of_their_tenants(tmp_path: Path) -> None:
    estimate = {"mean": 2.0, "lower": 1.0, "source": "fqe", "episodes": 3}
    async with cluster(tmp_path, 2) as made:
        for tenant in TENANTS[:10]:
            answer = await post(made.gateways[0], "estimate", {**estimate, "tenant": tenant})
            assert (answer.json["tenant"], answer.json["lifecycle"]["estimate"]) == (
                tenant,
                estimate,
            )
            profile = {"tenant": tenant, "profile": {"stakes": "high"}}
            answer = await post(made.gateways[1], "profile", profile)
            assert answer.json["lifecycle"]["state"] == "OFFLINE"
            wrong = {**estimate, "tenant": tenant, "version": "none"}
            assert (await post(made.gateways[0], "estimate", wrong)).status == 409
            memory = {"tenant": tenant, "memory": {"f-1": [1.0]}}
            for gateway in made.gateways:
                assert (await post(gateway, "memory", memory)).json["tenant"] == tenant
        third = await made.add()
        for tenant in TENANTS[:10]:
            assert (await decide(third, tenant))["cause"] == "lifecycle"


async def test_a_tenant_is_paused_wherever_it_moves(tmp_path: Path) -> None:
    async with cluster(tmp_path, 1) as made:
        for tenant in TENANTS:
            await post(made.gateways[0], "pause", {"tenant": tenant})
        second = await made.add()
        assert {(await decide(second, tenant))["cause"] for tenant in TENANTS} == {"paused"}
        assert (await decide(second, "another"))["cause"] is None


async def test_decisions_go_on_while_the_control_process_is_replaced(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2) as made:
        await flap(made.gateways[0], "t0", 5)
        old = made.control
        assert old is not None
        await old.stop()  # as if killed: nothing is written
        made.control = None
        assert (await flap(made.gateways[1], "t0", 2))["guard"] == HELD
        await made.start_control()
        await made.settled()
        answer = await post(made.gateways[0], "pause", {})
        assert answer.status == 200
        for one in made.gateways:
            assert (await decide(one, "t1"))["cause"] == "paused"


async def test_without_control_a_gateway_stops_when_its_lease_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_module, "LEASE_S", 0.3)
    monkeypatch.setattr(replica_module, "WAIT_S", 0.1)
    async with cluster(tmp_path, 1) as made:
        assert made.control is not None
        await made.control.stop()
        made.control = None
        await asyncio.sleep(0.5)
        answer = await post(made.gateways[0], "decide", {"state": {"load": 1, "replicas": 1}})
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert "no gateway can decide" in answer.json["error"]
        await made.start_control()


@pytest.mark.slow
async def test_an_action_waits_for_the_lease_of_a_gateway_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_module, "LEASE_S", 1.0)
    monkeypatch.setattr(replica_module, "LEASE_S", 1.0)
    async with cluster(tmp_path, 2) as made:

        async def hang(_: Any) -> None:
            await asyncio.sleep(60)

        stuck = made.gateways[1]
        for system in stuck.systems.values():
            monkeypatch.setattr(system, "apply_control", hang)
        monkeypatch.setattr(stuck, "tick", hang)  # no reports either
        began = asyncio.get_running_loop().time()
        assert (await post(made.gateways[0], "pause", {})).status == 200
        assert 0.3 < asyncio.get_running_loop().time() - began < 10
        answer = await post(stuck, "decide", {"state": {"load": 1, "replicas": 1}, "tenant": "t0"})
        assert answer.status == 503 or answer.json["cause"] == "paused"


async def test_the_folder_belongs_to_one_control_process(tmp_path: Path) -> None:
    async with cluster(tmp_path, 1) as made:
        assert lock_folder(made.settings.folder) is None
        with pytest.raises(InputError, match="in use by another service"):
            assemble(made.settings, {"toy": made.worker})
    os.close(lock_folder(made.settings.folder) or -1)


async def test_feedback_and_views_are_those_of_the_owner(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2) as made:
        one, other = made.gateways
        for tenant in TENANTS[:6]:
            made_here = await decide(one, tenant)
            body = {"id": made_here["id"], "tenant": tenant, "outcome": {"reward": 1.0}}
            fed = await post(other, "feedback", json.loads(json.dumps(body)))
            assert fed.status in (200, 422), fed
            seen: Callable[[Service], Any] = lambda service: send_request(  # noqa: E731
                service.app,
                "GET",
                f"/v1/toy/status?tenant={tenant}",  # noqa: B023
            )
            both = [(await seen(service)).json for service in (one, other)]
            assert both[0]["decisions"] == both[1]["decisions"]
            assert both[0]["rewards"] == both[1]["rewards"]
