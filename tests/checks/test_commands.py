"""Commands that findings bring along: whole, quoted, and the same line once for all nodes."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest

from preflight.judgement import command, failed, root_command
from preflight.outcome import Command, Severity
from preflight.reporters.base import Style
from preflight.reporters.text import REPORTER
from tests.building import a_check, a_recording, a_rule, job, judged, reached, seen, span

ROOT = Path(__file__).resolve().parents[2]
#: Something that a reader would have to replace: dots, angle brackets, a word in capitals alone.
HOLE = re.compile(r"\.\.\.|…|<[\w -]+>|(?<![\w$./{-])[A-Z][A-Z_]+(?![\w=}./-])")
#: Words in capitals that are what they are called.
NAMES = {"ACCEPT", "INPUT"}


def written() -> list[tuple[str, str]]:
    """Every literal word of every command that a check or rule makes, with where it stands."""
    found: list[tuple[str, str]] = []
    for folder in ("checks/preflight_checks", "rules/preflight_rules"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                    continue
                if node.func.id in ("command", "root_command", "Command"):
                    words = [
                        part.value for arg in node.args for part in ast.walk(arg) if isinstance(part, ast.Constant)
                    ]
                    found.extend((f"{path.name}:{node.lineno}", word) for word in words if isinstance(word, str))
    return found


def test_there_are_commands_at_many_checks() -> None:
    assert len({place for place, _ in written()}) >= 20


@pytest.mark.parametrize(("place", "word"), written())
def test_no_command_has_a_hole_in_it(place: str, word: str) -> None:
    assert word in NAMES or not HOLE.search(word), f"{place}: {word!r} is to be replaced by somebody"


@pytest.mark.parametrize("word", ["<first node>", "--rdzv_endpoint=HOST", "...", "NAME", "ip link set DEV up"])
def test_what_a_hole_looks_like(word: str) -> None:
    assert HOLE.search(word)


@pytest.mark.parametrize("path", ["/data/my set", "/tmp/$(rm -rf x)", "it's", "a;b", "~root", "*"])
def test_words_are_quoted(path: str) -> None:
    made = root_command("umount", "-l", path, on=["a", "b"])
    assert shlex.split(made.line) == ["sudo", "umount", "-l", path]
    assert made.nodes == ("a", "b")
    assert made.can_be_pasted


@pytest.mark.parametrize("path", ["/data/a\nrm -rf x", "/data/\x1b[2J", "/data/\u202e"])
def test_what_no_terminal_takes_is_left_out(path: str) -> None:
    verdict = failed("x", "wrong", at=span(), remedy="-", run=[command("rm", path), command("true")])
    assert verdict.commands == (Command("true"),)


def test_a_page_gives_each_command_a_line_and_one_line_for_all_nodes() -> None:
    def judge(*_: object):  # type: ignore[no-untyped-def]
        for name in ("n1", "n2", "n4"):
            run = [root_command("modprobe", "nvidia_peermem", on=(name,)), command("ulimit", "-n", "65536")]
            yield failed(name, "no module", at=seen(name, "none"), nodes=(name,), remedy="Load it.", run=run)

    record = a_recording(job(), verb="check", nodes=reached("n1", "n2", "n3", "n4"), stages=("node",))
    lines = REPORTER.render(judged(record, [], [a_check(judge)]), Style(width=40)).decode().splitlines()
    at = lines.index("  fix: Load it.")
    assert lines[at + 1 : at + 5] == [
        "  run on n[1-2,4]:",
        "    sudo modprobe nvidia_peermem",
        "  run:",
        "    ulimit -n 65536",
    ]


def test_a_command_is_never_wrapped() -> None:
    long = command("export", "no_proxy=" + ",".join(f"node{n}" for n in range(40)))
    rule = a_rule(lambda _: [failed("x", "wrong", at=span(), remedy="-", run=[long])], severity=Severity.WARNING)
    page = REPORTER.render(judged(a_recording(job()), [rule]), Style(width=40)).decode()
    assert f"\n    {long.line}\n" in page
