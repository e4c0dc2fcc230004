"""Both clients and the load generator against uvicorn, the server that the service uses."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse

from loadmaster.platform.bench.http_load import drive, report
from loadmaster.platform.bench.load_connections import Load
from loadmaster.serving.client import ServiceError
from tests.serving.client.conftest import MakeClient
from tests.serving.client.fake_service import DECISION

app = FastAPI()


@app.post("/v1/{system}/decide", response_model=None)
async def decide(system: str, request: Request) -> JSONResponse:
    asked = await request.json()
    if "jobs" not in asked["state"]:
        return JSONResponse({"error": "is missing", "field": "state.jobs"}, 422)
    return JSONResponse({**DECISION, "id": asked["request_id"], "decision": asked["state"]})


@app.get("/v1/{system}/example")
async def example(system: str, name: str) -> StreamingResponse:
    async def pieces() -> Any:
        yield b'{"name":'
        yield f'"{name}"'.encode()
        yield b"}"

    return StreamingResponse(pieces(), media_type="application/json")  # chunked


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join()


def test_calls_against_uvicorn(make_client: MakeClient, url: str) -> None:
    client = make_client(url)
    ids = set()
    for count in range(5):
        state = {"jobs": list(range(1000 * count))}
        decision = client.decide("decima", state)
        assert decision.decision == state
        ids.add(decision.id)
    assert len(ids) == 5
    assert client.example("decima", "large") == {"name": "large"}
    with pytest.raises(ServiceError, match=r"state\.jobs"):
        client.decide("decima", {})
    with pytest.raises(ServiceError) as raised:
        client.status("decima")
    assert raised.value.status == 404


def test_load_generator_against_uvicorn(url: str) -> None:
    load = Load(f"{url}/v1/decima/example?name=x", concurrency=4, seconds=0.5, rate=100)
    told = report(load, drive(load))
    assert told["requests"] == 50
    assert told["failed"] == {}
