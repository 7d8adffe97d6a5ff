"""Descendants of a process are found and killed, with and without the kernel's list of children."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from preflight.agent import process
from preflight.agent.command import CommandResult, command, run
from preflight.agent.process import Stat, content, last_snapshot, parse_stat, pids, stat_lines, text
from preflight.agent.wire import Context, Done, Failed, ProbeUnavailable
from preflight.runner.session import AgentSession
from tests.processes import all_gone
from tests.waiting import scaled

NEST = """
import subprocess, sys
depth = int(sys.argv[2])
if depth:
    subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[1], str(depth - 1)])
print(depth, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def nest() -> Iterator[subprocess.Popen[str]]:
    """A process with a child and a grandchild, each of which has printed its depth."""
    with subprocess.Popen(
        [sys.executable, "-c", NEST, NEST, "2"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as nest:
        assert nest.stdout is not None
        assert sorted(nest.stdout.readline() for _ in range(3)) == ["0\n", "1\n", "2\n"]
        yield nest
        process.kill_tree(nest.pid)


@pytest.mark.parametrize("listed", [True, False])
def test_all_descendants_are_found(nest: subprocess.Popen[str], listed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_kernel_lists_children", lambda: listed)
    below = process.descendants(nest.pid)
    assert len(below) == 2
    assert process.children_of(nest.pid) == below[:1] and process.children_of(below[0]) == below[1:]
    assert nest.pid in process.descendants(os.getpid())
    stat = process.stat_of(below[1])
    assert stat is not None and stat.parent == below[0] and stat.state in "SR"


def test_unusual_command_name_is_parsed(tmp_path: Path) -> None:
    name = "a) R (b"
    (tmp_path / name).symlink_to("/bin/cat")
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, executable=tmp_path / name) as odd:
        stat = process.stat_of(odd.pid)
        assert stat is not None
        assert (stat.command, stat.parent) == (name, os.getpid())
        assert odd.stdin is not None
        odd.stdin.close()


def test_exit_descriptions() -> None:
    assert process.describe_exit(-9) == "was killed by signal 9 (SIGKILL)"
    assert process.describe_exit(3) == "ended with exit code 3"
    assert process.stat_of(2**22 + 5) is None


# Process data from /proc.


LINE = b"77 (my (odd) name) R 5 77 77 0 -1 4194304 1 0 0 0 150 50 0 0 20 0 1 0 12345 0 0\n"


def test_one_line_of_a_process() -> None:
    assert parse_stat(LINE) == Stat(77, 5, "R", "my (odd) name", 200, 12345)


def test_name_with_blanks_brackets_and_odd_bytes() -> None:
    stat = parse_stat(LINE.replace(b"my (odd) name", b"a) R (\xff\n b"))
    assert stat is not None and (stat.pid, stat.command, stat.parent) == (77, "a) R (\ufffd\n b", 5)


def test_kernel_threads_are_recognised() -> None:
    stat = parse_stat(b"2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 0 0 0 20 0 1 0 2 0 0\n")
    assert stat is not None and stat.kernel


@pytest.mark.parametrize("line", [b"", b"1 (x) R a b", LINE.replace(b"12345", b"soon"), LINE.replace(b"77 (", b"x (")])
def test_malformed_line_gives_none(line: bytes) -> None:
    assert parse_stat(line) is None


def test_own_process_and_a_zombie() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    lines = stat_lines()
    mine, ended = parse_stat(lines[os.getpid()]), parse_stat(lines[child.pid])
    child.wait()
    assert mine is not None and (mine.pid, mine.parent, mine.kernel) == (os.getpid(), os.getppid(), False)
    assert ended is not None and (ended.parent, ended.state) == (os.getpid(), "Z")


def test_recent_snapshot_is_reused_on_request() -> None:
    before = stat_lines()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert stat_lines(60.0) is before and child.pid not in before
        assert child.pid in stat_lines()
        assert child.pid in stat_lines(60.0)
    pid = os.fork()
    if not pid:
        os._exit(os.getpid() not in stat_lines(60.0))
    assert os.waitpid(pid, 0)[1] == 0


def test_fork_inherits_the_snapshot_of_its_parent() -> None:
    before, began = stat_lines(), time.monotonic()
    pid = os.fork()
    if not pid:
        seen, at = last_snapshot(60.0)
        os._exit(seen is not before or at > began)
    assert os.waitpid(pid, 0)[1] == 0


def test_old_snapshot_is_not_used() -> None:
    before = stat_lines()
    seen, _ = last_snapshot(0.0)
    assert seen is not before


def test_files_of_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert text("self/cmdline").split("\0")[0] == Path("/proc/self/cmdline").read_text().split("\0")[0]
    assert len(content("self/maps")) > 4096 and len(content("self/maps", 10)) == 10
    assert content("0/stat") == b"" and text("nobody/comm") == ""
    monkeypatch.setattr(process, "PROC", str(tmp_path / "none"))
    assert pids() == [] and stat_lines() == {}


# Tools that answer, fail, hang, print too much, or are missing.


def error_of(*words: str, deadline_s: float = 5.0) -> ProbeUnavailable:
    """The error that this command raises."""
    with pytest.raises(ProbeUnavailable) as caught:
        run(words, deadline_s=deadline_s)
    return caught.value


def has_ended(pid: int) -> bool:
    """Whether the process has ended; a zombie counts as ended, and a killed process gets a moment."""
    return not all_gone([pid], 5.0)


def test_output_error_and_exit_code_are_separate() -> None:
    ran = run(["sh", "-c", "echo out; echo err >&2; exit 3"], deadline_s=5)
    assert (ran.output, ran.error, ran.exit_code, ran.cut) == ("out\n", "err\n", 3, False)


def test_a_signal_is_a_negative_exit_code() -> None:
    assert run(["sh", "-c", "kill -TERM $$"], deadline_s=5).exit_code == -15


def test_arguments_are_not_shell_code() -> None:
    assert run(["echo", "$HOME; `id`"], deadline_s=5).output == "$HOME; `id`\n"


def test_locale_is_c_and_administrator_tools_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    words = run(["sh", "-c", 'echo "$LC_ALL $PATH $MORE"'], deadline_s=5, environment={"MORE": "x"}).output.split()
    assert words[0] == "C" and "/usr/sbin" in words[1].split(":") and words[2] == "x"


def test_missing_denied_and_malformed_commands_are_distinguished(tmp_path: Path) -> None:
    assert error_of("no-such-tool-anywhere").kind == "missing"
    plain = tmp_path / "plain"
    plain.write_text("no program")
    assert error_of(str(plain)).kind == "denied"
    plain.chmod(0o755)
    assert error_of(str(plain)).kind == "crashed"
    assert error_of("").kind == "crashed" and error_of("echo", "a\0b").kind == "crashed"


def test_hanging_tool_is_killed_with_its_descendants(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    error = error_of("sh", "-c", f"sleep 60 & echo $! $$ > {pids}; wait", deadline_s=scaled(0.5))
    assert error.kind == "timeout" and f"{scaled(0.5):g} s" in error.reason
    assert all(has_ended(int(pid)) for pid in pids.read_text().split())


def test_tool_that_leaves_a_daemon_has_answered(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    ran = run(["sh", "-c", f"sleep 60 & echo $! > {pids}; echo done"], deadline_s=30)
    assert ran.output == "done\n"
    assert has_ended(int(pids.read_text()))


def test_excess_output_is_read_and_dropped() -> None:
    ran = run(
        ["sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x; echo end >&2"], deadline_s=20, max_output_bytes=1000
    )
    assert (len(ran.output), ran.cut, ran.error, ran.exit_code) == (1000, True, "end\n", 0)


def test_no_descriptor_stays_open() -> None:
    def is_open() -> set[str]:
        return {path.name for path in Path("/proc/self/fd").iterdir()}

    # Garbage of earlier tests may close descriptors meanwhile.
    gc.collect()
    before = is_open()
    run(["true"], deadline_s=5)
    error_of("sleep", "9", deadline_s=0.1)
    assert is_open() <= before


def test_command_as_a_probe() -> None:
    ran = command({"command": ["printf", "%s", "ä"], "deadline_s": 5})
    assert isinstance(ran, CommandResult) and ran.output == "ä"


# The ranks' interpreter, found through the console script that starts them.


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
