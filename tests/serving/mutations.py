"""Mutations of JSON data: values are replaced, changed a little, removed or duplicated."""

import copy
from typing import Any

from hypothesis import strategies as st

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


def paths_in(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all values inside a list or an object."""
    inside = value if isinstance(value, dict) else dict(enumerate(value))
    found = []
    for key, one in inside.items():
        found.append((*path, key))
        if isinstance(one, dict | list):
            found += paths_in(one, (*path, key))
    return found


def mutated(data: st.DataObject, valid: Any, most: int = 3) -> Any:
    """A copy of `valid` with up to `most` mutations, drawn from `data`."""
    state, paths = copy.deepcopy(valid), paths_in(valid)
    for path in data.draw(st.lists(st.sampled_from(paths), min_size=1, max_size=most)):
        branch: Any = state
        try:
            for part in path[:-1]:
                branch = branch[part]
            value = branch[path[-1]]
        except (KeyError, IndexError, TypeError):
            continue  # removed by an earlier mutation
        how = data.draw(st.sampled_from(["replace", "nudge", "remove", "duplicate"]))
        if how == "remove":
            del branch[path[-1]]
        elif how == "duplicate" and isinstance(branch, list):
            branch.append(value)
        elif how == "nudge" and isinstance(value, int):
            branch[path[-1]] = value + data.draw(st.integers(-3, 3))
        else:
            branch[path[-1]] = data.draw(JSON_VALUES)
    return state
