"""Ray's output goes to a file, and Ctrl-C while Ray starts is not lost."""

import contextlib
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from loadmaster.platform.ray.cleanup import reraise_sigint

BOTH_STREAMS = """
print("before")
with ray_output_in(Path("ray.log")) as ours:
    print("by Python")
    print("in logs", file=sys.stderr)
    os.write(1, b"natively\\n")
    os.write(2, b"natively, an error\\n")
    os.system("echo by a child")
    print("to the user", file=ours, flush=True)
print("after")
"""
FAULT = """
with ray_output_in(Path("ray.log")):
    os.write(2, b"natively\\n")
    raise ValueError("ours")
"""
NO_FILE = """
try:
    with ray_output_in(Path("none/ray.log")):
        print("never")
except FileNotFoundError:
    os.write(1, b"still here\\n")
"""
LOGGED = {"by Python", "by a child", "in logs", "natively", "natively, an error"}


@pytest.mark.parametrize(
    ("code", "out", "err", "logged"),
    [
        (BOTH_STREAMS, "before\nafter\n", "to the user\n", LOGGED),
        (FAULT, "", "ValueError: ours\n", {"natively"}),
        (NO_FILE, "still here\n", "", set()),
    ],
)
def test_output_is_logged(code: str, out: str, err: str, logged: set[str], tmp_path: Path) -> None:
    """In a process of its own: pytest has redirected the streams of this one."""
    (tmp_path / "ray.log").write_text("of a run that is resumed\n")
    imports = "import os, sys\nfrom pathlib import Path\n"
    imports += "from loadmaster.platform.ray.cleanup import ray_output_in\n"
    command = [sys.executable, "-c", imports + code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == out
    assert done.stderr.endswith(err)
    first, *lines = (tmp_path / "ray.log").read_text().splitlines()
    assert (first, set(lines)) == ("of a run that is resumed", logged)


def test_swallowed_interrupt_is_raised_and_the_handler_restored() -> None:
    before, done = signal.getsignal(signal.SIGINT), []
    with pytest.raises(KeyboardInterrupt), reraise_sigint():  # noqa: PT012 (the end raises)
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        done.append("the rest of the start")
    assert done
    assert signal.getsignal(signal.SIGINT) is before
    with reraise_sigint():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_interrupt_is_held_back_until_the_end_of_the_block() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), reraise_sigint(60.0):  # noqa: PT012 (the end raises)
        signal.raise_signal(signal.SIGINT)
        done.append("the rest of the start")
    assert done


@pytest.mark.parametrize(("held_s", "more"), [(0.05, 0), (60.0, 1)])
def test_held_interrupt_is_raised_when_the_time_is_over_or_at_the_next(
    held_s: float, more: int
) -> None:
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt), reraise_sigint(held_s):  # noqa: PT012 (as above)
        for _ in range(1 + more):
            signal.raise_signal(signal.SIGINT)
        time.sleep(30)
    assert time.monotonic() - began < 20
