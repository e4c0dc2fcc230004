"""Run a training as a child process, and start it again from its last checkpoint when it dies.

The entry point of jobs with `submit --retries`, as Ray does not restart the command of a job:

    python -m loadmaster.platform.cli.retries N [--continue] -- train SYSTEM --output RUN ...

This process imports neither torch nor Ray: where memory runs out, the kernel kills the child. Bad
input and stopped trainings are not repeated. With --continue an earlier job has begun the command.
"""

import datetime
import json
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from loadmaster.models.storage import Place, parse_place
from loadmaster.platform.cli.main import load_command
from loadmaster.platform.cli.options import INTERRUPTED, UsageError
from loadmaster.platform.ray.cleanup import RAY_LOG, handled
from loadmaster.platform.ray.head import die_with_parent
from loadmaster.platform.training.mirror import BUNDLES, CHECKPOINTS, LARGEST_MANIFEST, PUBLISHED
from loadmaster.platform.training.run_folder import CONFIG, MANIFEST, METRICS, RunFolder

MODULE = "loadmaster.platform.cli.main"
BAD_INPUT = 2
FINAL = (0, BAD_INPUT, INTERRUPTED, -signal.SIGINT, -signal.SIGTERM)  # exit codes of no retry
RUN_ENTRIES = {CONFIG, MANIFEST, METRICS, RAY_LOG, CHECKPOINTS, *BUNDLES, "tensorboard"}
PAUSE_S, LONGEST_PAUSE_S = 2.0, 60.0  # before a retry; doubles while no checkpoint is added

Child = Callable[[Sequence[str]], "subprocess.Popen[bytes]"]


def repeatable(command: Sequence[str], now: datetime.datetime) -> list[str]:
    """The command with its folder chosen; raises UsageError if it cannot be continued."""
    verb, *arguments = command
    if verb == "retrain":
        return [*command]
    if verb != "train":
        raise UsageError(f"--retries with `{verb}`; expected `train` or `retrain`, which resume")
    given = _options(arguments)
    if given["resume"] or given["output"] or given["system"] is None:
        return [*command]
    return [*command, "--output", f"runs/{given['system']}-{now:%Y%m%d-%H%M%S}"]


def continued(command: Sequence[str]) -> tuple[list[str], str]:
    """The command that continues a killed one, and from where, in words.

    A run without a checkpoint is deleted, as the killed training had made it.
    """
    verb, *arguments = command
    given = _options(arguments) if verb == "train" else {}
    if verb != "train" or given["resume"]:  # the same command resumes
        return [*command], "going on from its last checkpoint"
    run = str(given["output"])
    iteration = latest_checkpoint(place := parse_place(run))
    if iteration is None:
        _discard(place)
        return [*command], "starting again, as it left no checkpoint"
    options = [("--address", given["address"]), ("--mlflow", given["mlflow"])]
    more = [word for name, value in options if value for word in (name, str(value))]
    as_json = ["--json"] if given["as_json"] else []
    resume = ["train", "--resume", run, *more, *as_json]
    return resume, f"going on from iteration {iteration} of {run}"


def saved_iteration(command: Sequence[str]) -> int | None:
    """Iteration of the latest checkpoint of a training's run; None where that is not known."""
    verb, *arguments = command
    given = _options(arguments) if verb == "train" else {}
    run = given.get("resume") or given.get("output")
    return latest_checkpoint(parse_place(str(run))) if run else None


def latest_checkpoint(run: Place) -> int | None:
    """Iteration of a run's latest complete checkpoint; None if there is none."""
    if isinstance(run, Path):
        names = [path.name for path in RunFolder(run).checkpoints()]
    else:
        index = (run / MANIFEST).read(LARGEST_MANIFEST)
        names = sorted(json.loads(index).get(PUBLISHED, {})) if index else []
        names = [name for name in names if name.startswith(f"{CHECKPOINTS}/")]
    return int(names[-1].rpartition("-")[2]) if names else None


def _discard(run: Place) -> None:
    """Delete what a training leaves before its first checkpoint, never a folder of other files."""
    if isinstance(run, Path):
        entries = {path.name for path in run.iterdir()} if run.is_dir() else set()
    else:
        entries = run.entries()
    if {name for name in entries if not name.startswith(".")} <= RUN_ENTRIES:
        shutil.rmtree(run, ignore_errors=True) if isinstance(run, Path) else run.remove()


def _options(arguments: Sequence[str]) -> dict[str, Any]:
    """Options of `train`, as it parses them itself."""
    return dict(load_command("train").make_context("train", list(arguments)).params)


def start(command: Sequence[str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", MODULE, *command],
        stdin=subprocess.DEVNULL,
        preexec_fn=die_with_parent,
    )


def supervise(
    command: Sequence[str],
    retries: int,
    continues: bool = False,
    child: Child = start,
    pause_s: float = PAUSE_S,
) -> int:
    """Run the command, at most `retries` times more; return the last exit code."""
    stopped = threading.Event()
    # Ray signals the whole process tree of a job. A second SIGTERM would end the child at once,
    # without a checkpoint, so none is passed on.
    with handled(lambda *_: stopped.set(), signal.SIGTERM, signal.SIGINT):
        current, where = continued(command) if continues else (list(command), "")
        if current != list(command):
            _log(f"an earlier job was lost: {where}")
        retry, pause, saved = 0, pause_s, None
        while (code := child(current).wait()) not in FINAL and not stopped.is_set():
            if retry == retries:
                _log(f"the training {ending(code)}; no retry of {retries} is left")
                break
            retry += 1
            before, saved = saved, saved_iteration(command)
            repeats = retry > 1 and saved == before
            pause = min(2 * pause, LONGEST_PAUSE_S) if repeats else pause_s
            current, where = continued(command)
            _log(f"retry {retry} of {retries}: the training {ending(code)}; {where}")
            if stopped.wait(pause):
                return INTERRUPTED
    return code if code >= 0 else 128 - code


def ending(code: int) -> str:
    """How a process ended, by its exit code."""
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name
    hint = " (kill -9, or out of memory)" if -code == signal.SIGKILL else ""
    return f"was killed by {name}{hint}"


def _log(line: str) -> None:
    print(f"loadmaster: {line}", flush=True)


def main(arguments: Sequence[str]) -> int:
    """Parse `N [--continue] -- COMMAND...`, as `serving/jobs/job.py` writes it, and run it."""
    split = list(arguments).index("--")
    count, *flags = arguments[:split]
    return supervise(arguments[split + 1 :], int(count), "--continue" in flags)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
