"""The error for invalid user input, and wording of messages."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Invalid input; the message is one line with what was wrong and what was expected.

    The command line prints it without a traceback and exits with code 2.
    """


def unknown_name(kind: str, name: str, known: Iterable[str]) -> InputError:
    """Build the error for a name that is not registered; it suggests the nearest one."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"expected one of: {', '.join(names)}"
    return InputError(f"unknown {kind} {name!r}; {hint}")


def counted(number: int, noun: str) -> str:
    """Return the number with its noun, in the plural unless it is 1."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
