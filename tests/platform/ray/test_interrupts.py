"""Ctrl-C while a run is starting."""

from __future__ import annotations

import contextlib
import signal

import pytest

from loadmaster.platform.ray.cleanup import reraise_sigint


def test_a_swallowed_interrupt_counts_when_the_start_is_over() -> None:
    before = signal.getsignal(signal.SIGINT)
    done = []
    with pytest.raises(KeyboardInterrupt), reraise_sigint():  # noqa: PT012 (the end raises)
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        done.append("the rest of the start")
    assert done
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_is_raised_at_once() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), reraise_sigint():  # noqa: PT012
        signal.raise_signal(signal.SIGINT)
        done.append("never")
    assert not done


def test_without_one_the_handler_is_given_back_and_nothing_is_raised() -> None:
    before = signal.getsignal(signal.SIGINT)
    with reraise_sigint():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before
