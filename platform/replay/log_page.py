"""A service's decision log as a replay page: the decisions of one tenant over time."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import cast

from loadmaster.envs.errors import InputError
from loadmaster.envs.registry import systems
from loadmaster.models.manifest import visible
from loadmaster.platform.replay.adapters import ReplayAdapter
from loadmaster.platform.replay.recording import Recording
from loadmaster.serving.decisions.request import iso
from loadmaster.serving.monitoring.log_files import DecisionRow

NAMED = 3  # tenants in an error


def record_log(read: Callable[[], Iterable[DecisionRow]], tenant: str | None = None) -> Recording:
    """Record the decisions of a tenant; None: of that with the most decisions.

    `read` reads the log from its beginning, each time that it is called.
    """
    adapters = logged_adapters()
    found = Counter((row.system, row.tenant) for row in read() if row.system in adapters)
    if not found:
        raise InputError(
            f"the log has no decision that a page can show; expected some of {', '.join(adapters)}"
        )
    names = {name: (system, name) for system, name in found}
    if tenant is not None and tenant not in names:
        some = ", ".join(visible(name) for (_, name), _ in found.most_common(NAMED))
        raise InputError(f"unknown tenant {tenant!r}; expected one of the log, such as {some}")
    chosen = names[tenant] if tenant is not None else found.most_common(1)[0][0]
    adapter = adapters[chosen[0]]
    assert adapter.logged is not None
    times: list[float] = []

    def own() -> Iterable[DecisionRow]:
        for row in read():
            if (row.system, row.tenant) == chosen:
                times.append(row.time)
                yield row

    outcome = adapter.logged(own())
    items = adapter.item_names(None, outcome)
    system, name = chosen
    title = f"{system} · decision log of {visible(name)} · {iso(min(times))} to {iso(max(times))}"
    return Recording(adapter, (outcome,), items, title)


def logged_adapters() -> dict[str, ReplayAdapter]:
    """Adapters of the systems whose logs can be shown."""
    found = {
        name: cast(ReplayAdapter, system.load("replay"))
        for name, system in systems().items()
        if system.available and system.has("replay")
    }
    return {name: adapter for name, adapter in found.items() if adapter.logged is not None}
