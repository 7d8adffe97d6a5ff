"""Work in processes of its own: what was said before a hang or a crash is kept, and nobody waits for the hung one."""

from __future__ import annotations

import os
import signal
import time

from preflight_checks.probes.apart import Say, apart


def _quick(say: Say) -> None:
    say({"name": "é" * 40000})
    say({"count": 2})


def _hangs(say: Say) -> None:
    say({"name": "early"})
    say({"at": "a call"})
    time.sleep(60)


def _raises(say: Say) -> None:
    say({"at": "reading"})
    raise ValueError("no such thing")


def _is_killed(say: Say) -> None:
    say({"at": "computing"})
    os.kill(os.getpid(), signal.SIGKILL)


def test_each_is_heard_by_itself() -> None:
    began = time.monotonic()
    quick, hung, broken, killed = apart([_quick, _hangs, _raises, _is_killed], 0.5)
    assert time.monotonic() - began < 10
    assert (quick.problem, quick.values) == ("", {"name": "é" * 40000, "count": 2})
    assert (hung.problem, hung.at, hung.values) == ("timeout", "a call", {"name": "early"})
    assert (broken.problem, broken.at) == ("crashed", "reading") and "no such thing" in broken.detail
    assert killed.problem == "crashed" and "signal 9" in killed.detail


def test_nothing_to_do() -> None:
    assert apart([], 0.1) == []


def test_nothing_is_left_behind() -> None:
    apart([_hangs, _quick], 0.2)
    try:
        assert os.waitpid(-1, os.WNOHANG)[0] == 0, "a child was not reaped"
    except ChildProcessError:
        pass
