"""Every preflight command on a page exists and has valid options."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from preflight.cli import main

ROOT = Path(__file__).resolve().parents[2]
#: Texts that look like commands: names of test suites in a report, and the beginning of a printed line.
NO_COMMANDS = {"node", "link", "smoke:"}
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
#: Blocks of code, fenced or indented, and code inside of a sentence.
_CODE = re.compile(r"^(```|~~~)[^\n]*\n(.*?)^\1|^((?: {4}\S[^\n]*\n)+)|`(preflight [^`\n]+)`", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"(?:^|[|&;(`] ?|\$ )\s*preflight ([a-z][^\n|;#&>`]*)", re.MULTILINE)


def commands(text: str) -> Iterator[list[str]]:
    """The words of each command on a page, after `preflight`."""
    for found in _CODE.finditer(text):
        code = (found[2] or found[3] or found[4] or "").replace("\\\n", " ")
        for command in _COMMAND.finditer(code):
            words = command[1].split()
            if words[0] not in NO_COMMANDS:
                yield words


def options(command: click.Command) -> set[str]:
    """Every option of a command, in all spellings."""
    return {word for one in command.params for word in (*one.opts, *one.secondary_opts)} | {"-h", "--help"}


def wrong(words: list[str]) -> str:
    """The error in a command; empty if it is valid."""
    command: click.Command = main.cli
    while isinstance(command, click.Group):
        if not words or words[0] not in command.commands:
            # Followed by a sentence, or by a placeholder for commands.
            return "" if not words else f"no verb {words[0]!r}"
        command, words = command.commands[words[0]], words[1:]
    known = options(command)
    for word in words:
        if word == "--":
            break
        name = word.partition("=")[0].rstrip(",.:)]'\"")
        if re.fullmatch(r"--[a-z][a-z-]*", name) and name not in known:
            return f"{command.name} takes no {name}"
    return ""


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_shown_commands_are_valid(path: Path) -> None:
    faults = [f"preflight {' '.join(words)}: {why}" for words in commands(path.read_text()) if (why := wrong(words))]
    assert not faults


def test_an_invalid_command_is_found() -> None:
    fenced = "```text\npreflight lnit x\nfalse && preflight lint --nosuch\n```\n"
    page = f"{fenced}    preflight judge x --select A\n`preflight baseline x`\n"
    assert [bool(wrong(words)) for words in commands(page)] == [True, True, True, True]
