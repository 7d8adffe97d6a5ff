"""Tools that answer, fail, hang, flood, or are not there."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from preflight.node.command import Ran, command, run
from preflight.node.wire import ProbeUnavailable


def why(*words: str, deadline_s: float = 5.0) -> ProbeUnavailable:
    """What running this raises."""
    with pytest.raises(ProbeUnavailable) as caught:
        run(words, deadline_s=deadline_s)
    return caught.value


def gone(pid: int) -> bool:
    """Whether there is no such process any more, zombies not counted; a killed one is given a moment."""
    until = time.monotonic() + 5
    while time.monotonic() < until:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.01)
    return False


def test_output_error_and_exit_code_are_kept_apart() -> None:
    ran = run(["sh", "-c", "echo out; echo err >&2; exit 3"], deadline_s=5)
    assert (ran.output, ran.error, ran.exit_code, ran.cut) == ("out\n", "err\n", 3, False)


def test_a_signal_is_a_negative_exit_code() -> None:
    assert run(["sh", "-c", "kill -TERM $$"], deadline_s=5).exit_code == -15


def test_words_are_words_and_no_shell_code() -> None:
    assert run(["echo", "$HOME; `id`"], deadline_s=5).output == "$HOME; `id`\n"


def test_the_locale_is_c_and_tools_of_administrators_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    words = run(["sh", "-c", 'echo "$LC_ALL $PATH $MORE"'], deadline_s=5, environment={"MORE": "x"}).output.split()
    assert words[0] == "C" and "/usr/sbin" in words[1].split(":") and words[2] == "x"


def test_absent_denied_and_malformed_are_told_apart(tmp_path: Path) -> None:
    assert why("no-such-tool-anywhere").kind == "missing"
    plain = tmp_path / "plain"
    plain.write_text("no program")
    assert why(str(plain)).kind == "denied"
    plain.chmod(0o755)
    assert why(str(plain)).kind == "crashed"
    assert why("").kind == "crashed" and why("echo", "a\0b").kind == "crashed"


def test_a_hanging_tool_is_ended_with_what_it_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    began = time.monotonic()
    error = why("sh", "-c", f"sleep 60 & echo $! $$ > {pids}; wait", deadline_s=0.5)
    assert error.kind == "timeout" and "0.5 s" in error.reason
    assert time.monotonic() - began < 10
    assert all(gone(int(pid)) for pid in pids.read_text().split())


def test_a_tool_that_ends_and_leaves_something_with_its_output_has_answered(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    ran = run(["sh", "-c", f"sleep 60 & echo $! > {pids}; echo done"], deadline_s=30)
    assert ran.output == "done\n"
    assert gone(int(pids.read_text()))


def test_a_flood_is_read_to_its_end_and_cut() -> None:
    ran = run(["sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x; echo end >&2"], deadline_s=20, largest_output=1000)
    assert (len(ran.output), ran.cut, ran.error, ran.exit_code) == (1000, True, "end\n", 0)


def test_no_descriptor_is_left_open() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    run(["true"], deadline_s=5)
    why("sleep", "9", deadline_s=0.1)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_as_a_probe() -> None:
    ran = command({"command": ["printf", "%s", "ä"], "deadline_s": 5})
    assert isinstance(ran, Ran) and ran.output == "ä"
