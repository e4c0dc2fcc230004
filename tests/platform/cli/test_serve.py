"""What `loadmaster serve` tells when it is up."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadmaster.envs.settings import build_settings
from loadmaster.platform.cli.serve import _tell
from loadmaster.serving.settings import ServeSettings
from tests.serving import toy

TOKEN = "0123456789abcdef-secret"


@pytest.mark.parametrize(("mode", "warns"), [(0o600, False), (0o604, True)])
def test_tokens_that_everybody_can_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: int, warns: bool
) -> None:
    bundle = toy.make_bundle(tmp_path / "bundle")
    tokens = tmp_path / "tokens"
    tokens.write_text(f"read {TOKEN}\n")
    tokens.chmod(mode)
    systems = {"toy": {"endpoint": toy.REFERENCE, "bundle": str(bundle)}}
    _tell(build_settings(ServeSettings, {"systems": systems, "tokens": tokens}))
    told = capsys.readouterr()
    assert "toy: bundle, within 250 ms, else hold" in told.out
    assert "No tokens are set" not in told.out
    assert told.err.count("\n") == int(warns)
    assert ("can be read by everybody" in told.err) == warns
    assert TOKEN not in told.out + told.err


def test_without_tokens_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = toy.make_bundle(tmp_path / "bundle")
    systems = {"toy": {"endpoint": toy.REFERENCE, "bundle": str(bundle)}}
    _tell(build_settings(ServeSettings, {"systems": systems}))
    assert "No tokens are set: only this machine can ask." in capsys.readouterr().out
