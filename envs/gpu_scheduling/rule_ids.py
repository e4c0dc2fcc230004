"""The rules of the heuristics by number, apart from what applies them: a list of their names must
not wait for a compiler.
"""

from __future__ import annotations

# Who goes next. GIVEN: by a key that somebody else has written down.
FIFO, SJF, SRTF, DRF, TETRIS, LAS, GIVEN = 0, 1, 2, 3, 4, 5, 6
# Which machine first. AFFINITY: by numbers that somebody else has written down.
FIRST_FIT, BEST_FIT, WORST_FIT, LOAD_BALANCE, CONSOLIDATE, AFFINITY = 0, 1, 2, 3, 4, 5
