"""Checks of `loadmaster doctor`: the state of each part, and the remedy if it is wrong."""

import os
import platform
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path
from typing import Any, Literal

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from loadmaster.serving.jobs.wheel import ON_THE_NODES

Status = Literal["ok", "warn", "fail"]
GIB = 2**30
EXTRAS = ("train", "serve")  # optional dependencies for users
TRACES = {  # file patterns under LOADMASTER_DATA, in order of preference
    "tpch": ("tpch/*g/task_duration_*.npy", "*g/task_duration_*.npy"),
    "alibaba": ("alibaba2018/batch_task*.csv*", "batch_task*.csv*"),
}


@dataclass(frozen=True)
class Check:
    """Result of one check."""

    name: str
    status: Status
    detail: str
    remedy: str = ""


def examine(start_ray: bool = False) -> Iterator[Check]:
    """Run all checks; a check that raises is reported as failed."""
    parts = (_python, _standard_library, _libraries, _compiled_code, _traces, _machine, _browser)
    for part in (*parts, _cluster) if start_ray else parts:
        try:
            yield from part()
        except Exception as fault:
            name = part.__name__.strip("_").replace("_", " ")
            yield Check(name, "fail", f"{type(fault).__name__}: {fault}", "reinstall: make setup")


def _python() -> Iterator[Check]:
    wanted = SpecifierSet(metadata("loadmaster")["Requires-Python"])
    found = f"{platform.python_version()} at {sys.executable}"
    if wanted.contains(platform.python_version(), prereleases=True):
        yield Check("python", "ok", found)
    else:
        yield Check("python", "fail", f"{found}; expected {wanted}", "make PYTHON=/path/to/python")


def _standard_library() -> Iterator[Check]:
    """Check that the folder `platform/` does not hide the standard library's module."""
    here = Path(platform.__file__).resolve()
    if here.is_relative_to(Path(sysconfig.get_path("stdlib")).resolve()):
        yield Check("standard library", "ok", "platform is Python's own")
    else:
        remedy = "remove __init__.py from that folder, or take its parent off PYTHONPATH"
        yield Check("standard library", "fail", f"platform is hidden by {here}", remedy)


def _libraries() -> Iterator[Check]:
    for line in requires("loadmaster") or []:
        wanted = Requirement(line)
        # The wheel of a job names its dependencies under an extra, so that they are not installed.
        extras = ("", ON_THE_NODES, *EXTRAS)
        extra = next((one for one in extras if _applies(wanted, one)), None)
        if extra is None:
            continue
        try:
            found = version(wanted.name)
        except PackageNotFoundError:
            found = ""
        if found and wanted.specifier.contains(found, prereleases=True):
            yield Check(wanted.name, "ok", found)
        elif not found and extra in EXTRAS:
            remedy = f"pip install 'loadmaster[{extra}]'"
            yield Check(wanted.name, "warn", f"not installed; {extra} needs it", remedy)
        else:
            detail = f"{found or 'not installed'}; expected {wanted.specifier}"
            remedy = f"pip install -c constraints.txt '{wanted.name}{wanted.specifier}'"
            yield Check(wanted.name, "fail", detail, remedy)


def _applies(wanted: Requirement, extra: str) -> bool:
    return wanted.marker is None or wanted.marker.evaluate({"extra": extra})


def _compiled_code() -> Iterator[Check]:
    from loadmaster.envs.compiled import cache_folder

    folder = cache_folder()
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as fault:
        remedy = "set LOADMASTER_CACHE to a folder you may write to"
        detail = f"{existing} cannot be written: {fault.strerror}"
        yield Check("compiled code", "fail", detail, remedy)
        return
    functions = sum(1 for _ in folder.rglob("*.nbi"))
    state = f"{functions} functions ready" if functions else "none yet, the first run compiles"
    yield Check("compiled code", "ok", f"{state}, in {folder}")


def _traces() -> Iterator[Check]:
    given = os.environ.get("LOADMASTER_DATA", "")
    place = Path(given).expanduser()
    found = ["a file"] if place.is_file() else []
    for workload, patterns in TRACES.items() if given else ():
        if count := next((n for p in patterns if (n := len(list(place.glob(p))))), 0):
            found.append(f"{workload} (files: {count})")
    if not given:
        yield Check("traces", "ok", "LOADMASTER_DATA is not set: generated workloads only")
    elif not place.exists():
        remedy = "set LOADMASTER_DATA to the folder of your traces, or unset it"
        yield Check("traces", "fail", f"LOADMASTER_DATA={given} does not exist", remedy)
    elif found:
        yield Check("traces", "ok", f"{', '.join(found)} at {place}")
    else:
        remedy = f"expected one of: {', '.join(p for ps in TRACES.values() for p in ps)}"
        yield Check("traces", "warn", f"no known trace in {place}", remedy)


def _machine() -> Iterator[Check]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")  # memory limit of a container
    if limit.is_file() and (text := limit.read_text().strip()).isdigit():
        memory = min(memory, int(text))
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    remedy = "Ray and torch want 4 GiB; evaluation needs less" if memory < 4 * GIB else ""
    detail = f"{cores} cores, {memory / GIB:.1f} GiB memory"
    yield Check("machine", "warn" if remedy else "ok", detail, remedy)


def _browser() -> Iterator[Check]:
    names = ("chromium", "chromium-browser", "google-chrome")
    if path := next(filter(None, map(shutil.which, names)), None):
        yield Check("browser", "ok", path)
    else:
        remedy = "apt-get install chromium (only the tests that open a page need it)"
        yield Check("browser", "warn", "no chromium on PATH", remedy)


def _cluster() -> Iterator[Check]:
    """Connect to the cluster at RAY_ADDRESS, or start a local Ray."""
    import logging

    import ray
    from loadmaster.platform.ray.session_folder import session_folder

    address = os.environ.get("RAY_ADDRESS")
    local: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    try:
        with ExitStack() as stack:
            if not address:
                folder = stack.enter_context(session_folder())
                local |= {"include_dashboard": False, "_temp_dir": str(folder)}
            stack.callback(ray.shutdown)
            ray.init(address or "local", **local)
            resources = ray.cluster_resources()
            nodes = sum(1 for node in ray.nodes() if node["Alive"])
    except Exception as fault:
        remedy = "see the log folder Ray names; check RAY_ADDRESS and free memory"
        yield Check("cluster", "fail", f"{type(fault).__name__}: {fault}", remedy)
        return
    shown = [f"{resources[kind]:g} {kind}" for kind in ("CPU", "GPU") if kind in resources]
    shown.append(f"{resources.get('memory', 0) / GIB:.1f} GiB")
    yield Check("cluster", "ok", f"{address or 'started here'}: nodes {nodes}, {', '.join(shown)}")
