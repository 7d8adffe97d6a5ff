"""Documents other than reports: what is written where."""

from __future__ import annotations

from pathlib import Path

import pytest

from preflight._util import terminal
from preflight.cli import main


@pytest.mark.parametrize("form", ["text", "markdown"])
def test_text_is_written_in_the_encoding_of_the_terminal(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    (tmp_path / "run.sh").write_text("#!/bin/bash\ntorchrun --standalone --nproc_per_node=2 zug_训.py\n", "utf-8")
    monkeypatch.setattr(terminal, "encoding_of", lambda stream: "iso8859-1")
    assert main.run(["plan", str(tmp_path / "run.sh"), "-o", form]) == 0
    assert rb"zug_\u8bad.py" in capfdbinary.readouterr().out


def test_a_file_is_always_utf_8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run.sh").write_text("#!/bin/bash\ntorchrun --standalone --nproc_per_node=2 zug_训.py\n", "utf-8")
    monkeypatch.setattr(terminal, "encoding_of", lambda stream: "iso8859-1")
    assert main.run(["plan", str(tmp_path / "run.sh"), "-o", f"text:{tmp_path / 'plan.txt'}"]) == 0
    assert "zug_训.py" in (tmp_path / "plan.txt").read_text("utf-8")
