"""Completion, as triggered by the Tab key in a real shell."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "integrations" / "completion"
DEADLINE_S = 30.0
BASH = ("bash", "--noprofile", "--norc", "-i")
ZSH = ("zsh", "-f", "-i")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a shell that finds preflight, with a plain text terminal."""
    folder = tmp_path_factory.mktemp("bin")
    (folder / "preflight").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m preflight "$@"\n')
    (folder / "preflight").chmod(0o755)
    paths = os.pathsep.join(str(path) for path in (ROOT, ROOT / "checks", ROOT / "rules"))
    return {
        "PATH": f"{folder}:/usr/bin:/bin",
        "PYTHONPATH": paths,
        "HOME": str(folder),
        "TERM": "dumb",
        "LC_ALL": "C.UTF-8",
    }


class Terminal:
    """A shell in its own terminal."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self.descriptor, text.encode())

    def until(self, pattern: str) -> str:
        """Read the output until it contains a match."""
        shown, deadline = "", time.monotonic() + DEADLINE_S
        while not re.search(pattern, shown):
            ready, _, _ = select.select([self.descriptor], [], [], max(deadline - time.monotonic(), 0))
            assert ready, f"waited for {pattern!r}, seen so far: {shown!r}"
            shown += os.read(self.descriptor, 4096).decode(errors="replace").replace("\r", "").replace("\b", "")
        return shown


@contextmanager
def shell(words: tuple[str, ...], environment: dict[str, str]) -> Iterator[Terminal]:
    """A shell, until the end of the block."""
    pid, descriptor = pty.fork()
    if pid == 0:
        os.execvpe(words[0], list(words), environment)
    try:
        yield Terminal(descriptor)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(descriptor)


def test_bash_completes_verbs_options_words_and_ids(environment: dict[str, str]) -> None:
    with shell(BASH, environment) as terminal:
        terminal.type(f"PS1='> '; bind 'set bell-style none'; source {FOLDER / 'preflight.bash'}; echo rea''dy\n")
        terminal.until("ready\n")
        for typed, completed in (
            ("preflight li", "lint "),
            ("preflight lint --stati", "--statistics "),
            ("preflight check --until no", "node "),
            ("preflight lint --select WLD00", r"WLD00[\s\S]*WLD001[\s\S]*WLD002"),
            ("preflight lint --select ENV,rendezvous-on-loo", "rendezvous-on-loopback "),
        ):
            # The second press lists the candidates if there are several.
            terminal.type(f"{typed}\t" + "\t" * ("[" in completed))
            terminal.until(re.escape(typed.rpartition(" ")[0]) + r"[\s\S]*" + completed)
            terminal.type("\x15\n")


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_completes(environment: dict[str, str]) -> None:
    with shell(ZSH, environment) as terminal:
        terminal.type(f"PS1='> '; autoload -U compinit; compinit -D; source {FOLDER / 'preflight.zsh'}; echo rea''dy\n")
        terminal.until("ready\n")
        terminal.type("preflight lint --stati\t")
        terminal.until("--statistics")
        terminal.type("\x15preflight lint --select RDV00\t")
        terminal.until(r"RDV001[\s\S]*rendezvous-on-loopback")


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes(environment: dict[str, str]) -> None:
    def completed(typed: str) -> list[str]:
        script = f"source {FOLDER / 'preflight.fish'}; complete --do-complete '{typed}'"
        words = ["fish", "--no-config", "-c", script]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=False)
        return [line.partition("\t")[0] for line in done.stdout.splitlines()]

    assert completed("preflight li") == ["lint"]
    assert "RDV001" in completed("preflight lint --select RDV0")


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_the_files_are_what_the_command_prints(name: str, environment: dict[str, str]) -> None:
    done = subprocess.run(
        ["preflight"],
        env={**environment, "_PREFLIGHT_COMPLETE": f"{name}_source"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.strip() == (FOLDER / f"preflight.{name}").read_text().strip()
