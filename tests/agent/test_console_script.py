"""The ranks' interpreter, found through the console script that starts them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from preflight.agent.wire import Context, Done, Failed
from preflight.runner.session import AgentSession

#: First lines as pip and distlib write them: a path, a look-up, and the form for paths that are too long.
FIRST_LINES = {
    "path": "#!{python}\n",
    "lookup": "#!/usr/bin/env {name}\n",
    "long": "#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n",
    "long without quotes": "#!/bin/sh\n'''exec' {python} \"$0\" \"$@\"\n' '''\n",
}


def answer_in(with_session: Callable[..., Any], folder: Path, text: str | None) -> Done | Failed:
    """The answer of a probe in the context of the console script `starter` with this text."""
    if text is not None:
        (folder / "starter").write_text(text + "raise SystemExit('nobody runs the script itself')\n")
        (folder / "starter").chmod(0o755)
    path = f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    context = Context(script="starter", environment={"PATH": path, "NCCL_DEBUG": "INFO"})

    async def use(session: AgentSession) -> Done | Failed:
        return await session.request("shipped.probes:place", {"variable": "NCCL_DEBUG"}, context=context, deadline_s=20)

    return with_session(use)  # type: ignore[no-any-return]


@pytest.mark.parametrize("form", FIRST_LINES)
def test_first_lines_name_the_interpreter(with_session: Callable[..., Any], tmp_path: Path, form: str) -> None:
    python = Path(sys.executable)
    text = FIRST_LINES[form].format(python=python, name=python.name)
    answer = answer_in(with_session, tmp_path, text)
    assert isinstance(answer, Done), answer
    assert answer.value["variable"] == "INFO"


def test_missing_script_is_reported(with_session: Callable[..., Any], tmp_path: Path) -> None:
    answer = answer_in(with_session, tmp_path, None)
    assert isinstance(answer, Failed)
    assert answer.kind == "context"
    assert "starter is not on the PATH" in answer.reason + answer.detail


def test_script_of_another_language_is_reported(with_session: Callable[..., Any], tmp_path: Path) -> None:
    answer = answer_in(with_session, tmp_path, "#!/bin/bash\n")
    assert isinstance(answer, Failed)
    assert answer.kind == "context"
    assert "names no Python interpreter" in answer.reason + answer.detail
