"""Commands of findings: complete, quoted, and one line for all nodes."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest

from preflight.model.findings import Command, Severity
from preflight.plugins.authoring import command, failed, root_command
from preflight.reporters.base import Style
from preflight.reporters.text import REPORTER
from tests.builders import job, judged, make_check, make_recording, make_rule, reached, seen, span

ROOT = Path(__file__).resolve().parents[2]
#: A placeholder that a reader would have to replace: dots, angle brackets, a word in capitals.
HOLE = re.compile(r"\.\.\.|…|<[\w -]+>|(?<![\w$./{-])[A-Z][A-Z_]+(?![\w=}./-])")
#: Calls that make commands; a module without them is skipped.
MAKES = re.compile(r"\b(command|root_command|Command)\(")
#: Words in capitals that are not placeholders.
NAMES = {"ACCEPT", "INPUT"}


def written() -> list[tuple[str, str]]:
    """Every literal word of every command of a check or rule, with its location."""
    found: list[tuple[str, str]] = []
    for folder in ("checks/preflight_checks", "rules/preflight_rules"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text()
            # Each test process collects this; parsing all modules would take a tenth of its time.
            if not MAKES.search(text):
                continue
            for node in ast.walk(ast.parse(text)):
                if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                    continue
                if node.func.id in ("command", "root_command", "Command"):
                    words = [
                        part.value for arg in node.args for part in ast.walk(arg) if isinstance(part, ast.Constant)
                    ]
                    found.extend((f"{path.name}:{node.lineno}", word) for word in words if isinstance(word, str))
    return found


def test_many_checks_have_commands() -> None:
    assert len({place for place, _ in written()}) >= 20


def test_no_command_has_a_placeholder() -> None:
    for place, word in written():
        assert word in NAMES or not HOLE.search(word), f"{place}: {word!r} is to be replaced by somebody"


@pytest.mark.parametrize("word", ["<first node>", "--rdzv_endpoint=HOST", "...", "NAME", "ip link set DEV up"])
def test_placeholders_are_recognized(word: str) -> None:
    assert HOLE.search(word)


@pytest.mark.parametrize("path", ["/data/my set", "/tmp/$(rm -rf x)", "it's", "a;b", "~root", "*"])
def test_words_are_quoted(path: str) -> None:
    made = root_command("umount", "-l", path, on=["a", "b"])
    assert shlex.split(made.line) == ["sudo", "umount", "-l", path]
    assert made.nodes == ("a", "b")
    assert made.can_be_pasted


@pytest.mark.parametrize("path", ["/data/a\nrm -rf x", "/data/\x1b[2J", "/data/\u202e"])
def test_control_characters_are_removed(path: str) -> None:
    verdict = failed("x", "wrong", at=span(), remedy="-", run=[command("rm", path), command("true")])
    assert verdict.commands == (Command("true"),)


def test_a_page_gives_each_command_one_line() -> None:
    def judge(*_: object):  # type: ignore[no-untyped-def]
        for name in ("n1", "n2", "n4"):
            run = [root_command("modprobe", "nvidia_peermem", on=(name,)), command("ulimit", "-n", "65536")]
            yield failed(name, "no module", at=seen(name, "none"), nodes=(name,), remedy="Load it.", run=run)

    record = make_recording(job(), verb="check", nodes=reached("n1", "n2", "n3", "n4"), stages=("node",))
    lines = REPORTER.render(judged(record, [], [make_check(judge)]), Style(width=40)).decode().splitlines()
    at = lines.index("  fix: Load it.")
    assert lines[at + 1 : at + 5] == [
        "  run on n[1-2,4]:",
        "    sudo modprobe nvidia_peermem",
        "  run:",
        "    ulimit -n 65536",
    ]


def test_commands_are_never_wrapped() -> None:
    long = command("export", "no_proxy=" + ",".join(f"node{n}" for n in range(40)))
    rule = make_rule(lambda _: [failed("x", "wrong", at=span(), remedy="-", run=[long])], severity=Severity.WARNING)
    page = REPORTER.render(judged(make_recording(job()), [rule]), Style(width=40)).decode()
    assert f"\n    {long.line}\n" in page
