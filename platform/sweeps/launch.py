"""A sweep's surroundings: Ray, its log and the display, each ended in its turn."""

from __future__ import annotations

import math
import sys
from contextlib import ExitStack

from rich.console import Console

from loadmaster.envs.errors import InputError
from loadmaster.platform.ending import ending
from loadmaster.platform.ray_output import RAY_LOG, ray_output_in
from loadmaster.platform.ray_session import ray_session
from loadmaster.platform.sweeps.folder import SweepFolder
from loadmaster.platform.sweeps.records import Outcome
from loadmaster.platform.sweeps.sweep import Sweep


def launch(sweep: Sweep, folder: SweepFolder, resumed: bool, address: str | None) -> Outcome:
    """All trials, or as far as they come before somebody stops them. Progress goes to stderr."""
    with ExitStack() as stack:
        go_on = f"go on with: loadmaster tune --resume {folder.path}"
        stack.enter_context(ending(folder, resumed, lambda: print(go_on, file=sys.stderr)))
        stderr = stack.enter_context(ray_output_in(folder.path / RAY_LOG))
        console = Console(file=stderr, highlight=False)
        with console.status("starting Ray" if address is None else f"joining {address}"):
            stack.enter_context(ray_session(address, math.ceil(sweep.needs["CPU"])))
            # Late: Tune takes seconds to import, and is to speak into the log from the start.
            from loadmaster.platform.sweeps.run import run_sweep, shortage
            from loadmaster.platform.sweeps.table import TrialDisplay

            lacking = shortage(sweep)
        if lacking is not None:
            if address is None:
                raise InputError(f"{lacking}; expected a larger machine, or --address")
            console.print(f"{lacking}; waiting for the cluster to grow", soft_wrap=True)
        display = stack.enter_context(TrialDisplay(sweep, console))
        return run_sweep(sweep, folder, display)
