"""The cache of compiled functions does not depend on where the sources are."""

from __future__ import annotations

from pathlib import Path

from loadmaster.envs.compiled import PACKAGE_ROOT, PackageCacheLocator, cache_folder, cache_root
from loadmaster.envs.dag_scheduling.rollout import run

subpath = PackageCacheLocator.get_suitable_cache_subpath


def test_cache_path_follows_the_module_path_within_the_packages() -> None:
    folder = subpath(str(PACKAGE_ROOT / "envs" / "dag_scheduling" / "rollout.py"))
    assert folder == "dag_scheduling_envs_dag_scheduling"
    assert cache_folder().is_relative_to(cache_root())
    assert Path(run._cache.cache_path) == cache_folder() / folder  # type: ignore[attr-defined]


def test_cache_paths_of_different_modules_differ(tmp_path: Path) -> None:
    ours = {subpath(str(PACKAGE_ROOT / p / "decima" / "network.py")) for p in ("models", "serving")}
    assert len(ours) == 2
    others = {subpath(str(tmp_path / part / "fast" / "loop.py")) for part in "ab"}
    assert len(others) == 2
    assert all(path.startswith("fast_") for path in others)
