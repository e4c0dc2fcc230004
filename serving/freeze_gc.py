"""What a process has loaded stays until it ends: nobody need look through it again and again."""

from __future__ import annotations

import gc


def freeze_gc() -> None:
    """To be called when everything is loaded.

    Libraries leave half a million objects behind. Every full collection would walk them all, for
    tenths of a second in which no request is answered, and find nothing.
    """
    gc.collect()
    gc.freeze()
