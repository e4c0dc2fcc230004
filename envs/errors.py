"""One kind of error for everything a user can get wrong."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Bad input, told in one line: what was wrong, and what was expected.

    The command line prints the line and exits with code 2; nobody needs a traceback for a typo.
    """


def unknown_name(kind: str, name: str, known: Iterable[str]) -> InputError:
    """The error for a name that is not registered, with the nearest one suggested."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"expected one of: {', '.join(names)}"
    return InputError(f"unknown {kind} {name!r}; {hint}")
