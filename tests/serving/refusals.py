"""What holds for every request that is refused."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tests.serving.asgi import Answered
from tests.serving.conftest import Here


def state_of(here: Here, system: str, name: str = "small") -> dict[str, Any]:
    state: dict[str, Any] = here.ask("GET", f"/v1/{system}/example?name={name}").json
    return state


def refused(
    ask: Callable[[], Answered], status: int = 422, field: str | None = None, says: str = ""
) -> Answered:
    """Asserts all that holds for every refusal."""
    began = time.process_time()  # other processes' work does not count
    answered = ask()
    took_s = time.process_time() - began
    assert answered.status == status, answered
    assert set(answered.json) == {"error", "field"}
    assert answered.json["field"] == field, answered
    assert says in answered.json["error"], answered
    assert "\n" not in answered.json["error"]
    assert len(answered.body) < 1200, "errors do not repeat megabytes"
    assert answered.headers["content-type"] == "application/json"
    assert answered.headers["x-content-type-options"] == "nosniff"
    assert took_s < 1
    return answered
