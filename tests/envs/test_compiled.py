"""Compiled functions are found again wherever the sources lie."""

from __future__ import annotations

from pathlib import Path

from loadmaster.envs.compiled import PACKAGE_ROOT, PackageCacheLocator, cache_folder, cache_root
from loadmaster.envs.dag_scheduling.rollout import run


def test_a_function_lies_by_its_place_in_the_house() -> None:
    module = PACKAGE_ROOT / "envs" / "dag_scheduling" / "rollout.py"
    place = PackageCacheLocator.get_suitable_cache_subpath(str(module))
    assert place == "dag_scheduling_envs_dag_scheduling"
    assert cache_folder().is_relative_to(cache_root())
    assert Path(run._cache.cache_path) == cache_folder() / place  # type: ignore[attr-defined]


def test_folders_of_one_name_are_told_apart() -> None:
    modules = [PACKAGE_ROOT / floor / "decima" / "network.py" for floor in ("models", "serving")]
    places = {PackageCacheLocator.get_suitable_cache_subpath(str(module)) for module in modules}
    assert len(places) == 2


def test_functions_of_others_lie_by_their_path(tmp_path: Path) -> None:
    places = {
        PackageCacheLocator.get_suitable_cache_subpath(str(tmp_path / part / "fast" / "loop.py"))
        for part in "ab"
    }
    assert len(places) == 2
    assert all(place.startswith("fast_") for place in places)
