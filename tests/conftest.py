"""Fixtures of all tests, and their order."""

import contextlib
import os
import re
import secrets
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.browser import Browser, chromium
from tests.object_store import CREDENTIALS, ObjectStore, object_store

# Before torch is imported: on networks as small as those of tests its threads cost more than they
# save, seconds where the cores are busy.
os.environ["OMP_NUM_THREADS"] = "1"
# Ray ends a node, and with it the tests' process, whose agent is not up within 30 s, by default.
os.environ.update({"RAY_agent_register_timeout_ms": "300000"})
# Compiled modules are kept, also of the tests: hundreds of processes start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
os.environ.pop("COLUMNS", None)  # tables have the width of a pipe

LIVE = "live"  # group of the files that use the service on Ray Serve
PARSED = "architecture"  # folder of the files that parse all modules
ORDER = (PARSED, "docker", "e2e", LIVE, "")  # of folders and groups; "": all others


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest groups first, so that both processes end at about the same time."""
    items.sort(key=lambda item: ORDER.index(group_of(item)))


def group_of(item: pytest.Item) -> str:
    if _uses_live_service(str(item.path)):
        return LIVE
    return next((part for part in item.path.parts if part in ORDER), "")


class ByFile(LoadScopeScheduling):
    """Distribute tests to processes by file.

    Files that use the service on Ray Serve, which takes half a minute to start, count as one, as do
    those that parse all modules; any other Ray session is started once per process.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::")[0]
        if f"/{PARSED}/" in file:
            return PARSED
        return LIVE if _uses_live_service(file) else file


@cache
def _uses_live_service(file: str) -> bool:
    return re.search(r"\blive: Live\b", Path(file).read_text()) is not None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    return ByFile(config, log)


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def ray_session(root: Path) -> Iterator[None]:
    """One small Ray for all tests that need it: starting takes seconds.

    Its workers have the repository first on sys.path, as those of a job submitted from there.
    """
    import ray

    from loadmaster.platform.ray import serve_session
    from loadmaster.platform.ray.session import start_local
    from loadmaster.platform.ray.session_folder import session_folder

    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(session_folder())
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))  # else one is left in the home folder
        patch.delenv("RAY_ADDRESS", raising=False)
        with pytest.MonkeyPatch.context() as for_workers:
            for_workers.setenv("PYTHONPATH", str(root), prepend=os.pathsep)
            for name, value in serve_session.ENVIRONMENT.items():
                for_workers.setenv(name, value)
            for_workers.setenv("RAY_metrics_report_interval_ms", "1000")  # not ten seconds
            for_workers.setenv("REPORTER_UPDATE_INTERVAL_MS", "60000")  # of figures of the node
            for name, value in CREDENTIALS.items():  # of the S3 server, which may start later
                for_workers.setenv(name, value)
            # Nobody reads the logs: the process that would look for lines takes 2% of a core.
            for_workers.setattr("ray._private.node.Node.start_log_monitor", lambda _: None)
            start_local(folder, num_cpus=2, object_store_memory=128 * 2**20)
        stack.callback(ray.shutdown)
        yield


@pytest.fixture(scope="session")
def s3() -> Iterator[ObjectStore]:
    """An S3 server for all tests of this process; the environment names it."""
    with object_store() as store:
        yield store


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = chromium()
    if program is None:
        pytest.skip("no Chromium on PATH; Debian's is `apt-get install chromium`")
    opened = Browser(program, tmp_path_factory.mktemp("chromium"))
    yield opened
    opened.close()
