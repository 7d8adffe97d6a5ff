"""Tools that answer, fail, hang, print too much, or are missing."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from preflight.agent.command import CommandResult, command, run
from preflight.agent.wire import ProbeUnavailable
from tests.processes import all_gone
from tests.waiting import scaled


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
