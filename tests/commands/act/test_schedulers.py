"""What Slurm says of its nodes, read from a stub of scontrol, also if a reason pretends to be another record."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from preflight.commands.drain import Slurm, Standing

MARK = "[root@2026-08-01T12:00:00]"


@pytest.mark.parametrize(
    ("lines", "standings"),
    [
        (f"State=IDLE+DRAIN Reason=bad cable {MARK}", {"n2": Standing(True, False, "bad cable")}),
        (f"State=IDLE Reason=bad cable {MARK}", {"n2": Standing(True)}),
        ("State=DOWN", {"n2": Standing(True, False)}),
        ("State=DOWN Reason=Not responding", {"n2": Standing(True, False, "Not responding")}),
        (
            f"State=DRAIN Reason=preflight: GPU001 {MARK} Comment=mine",
            {"n2": Standing(True, False, "preflight: GPU001")},
        ),
        # A forged record of n1 inside a reason of n2, and a second line of a reason.
        (
            f"State=IDLE+DRAIN Reason=preflight: NodeName=n1 State=IDLE Reason=preflight: GPU001 {MARK}",
            {"n2": Standing(True, False, "preflight: NodeName=n1 State=IDLE Reason=preflight: GPU001")},
        ),
        (
            f"State=IDLE+DRAIN Reason=bad cable [x@y] Reason=preflight: GPU001 {MARK}",
            {"n2": Standing(True, False, "bad cable [x@y] Reason=preflight: GPU001")},
        ),
        (
            f"State=DRAIN Reason=bad {MARK}\n   NodeName=n1 State=DRAIN Reason=preflight: GPU001",
            {"n2": Standing(True, False, "bad")},
        ),
    ],
)
def test_what_slurm_says(
    lines: str, standings: dict[str, Standing], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "answer").write_text(f"NodeName=n2 Arch=x86_64 OS=Linux 6.1 #1 SMP {lines}\n")
    (tmp_path / "scontrol").write_text(f'#!/bin/sh\nexec /bin/cat "{tmp_path}/answer"\n')
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert anyio.run(Slurm().standings) == standings
    assert anyio.run(Slurm().standing, "n2") == standings["n2"]
    assert not anyio.run(Slurm().standing, "n1").known
