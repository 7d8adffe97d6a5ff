"""Carries out what follows from a run, or shows the exact commands; everything is logged."""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import anyio

from preflight._util.usage_error import UsageError
from preflight.commands.act.decisions import Decision, Decisions, Standing, decide
from preflight.commands.act.schedulers import ANSWER_S, SCHEDULERS, Command, Scheduler
from preflight.engine.report import Report
from preflight.executors.base import ExecutorError
from preflight.executors.tool import run_tool

LOG = logging.getLogger(__name__)


def act_on(
    report: Report,
    scheduler: str,
    *,
    really: bool,
    at_most: float,
    say: Callable[[str], None],
    log_file: Path | None = None,
) -> Decisions:
    """Drain and resume nodes after a run, or say by which commands that would be done.

    Args:
        scheduler: `slurm` or `kubernetes`.
        really: whether the commands are run.
        at_most: the largest share of nodes out of service by preflight.
        say: gets each line for the user.
        log_file: gets a line of JSON for each decision to change something, and for each command that ran.

    Raises:
        UsageError: the scheduler does not answer, a command failed, or too many nodes would be drained. Nodes that
            were changed before are logged.
    """
    return anyio.run(_act, report, SCHEDULERS[scheduler](), really, at_most, say, log_file)


async def _act(
    report: Report,
    scheduler: Scheduler,
    really: bool,
    at_most: float,
    say: Callable[[str], None],
    log_file: Path | None,
) -> Decisions:
    try:
        standings = await scheduler.standings()
    except ExecutorError as error:
        raise UsageError(f"nothing was changed: {error.message}") from None
    found = decide(report, standings, at_most=at_most)
    changes = [item for item in found.items if item.action != "leave"]
    # Nodes come back first: the share counts them as back, also if the run ends early.
    for item in sorted(found.items, key=lambda item: item.action == "drain"):
        LOG.info("%s: %s (%s)", item.node, item.action, item.reason)
        if item not in changes or (really and await _has_changed(item, scheduler, standings[item.node], say, log_file)):
            continue
        for command in scheduler.commands(item):
            await _one(item, command, really, say, log_file)
    if found.refused:
        raise UsageError(f"no node was drained: {found.refused}")
    if not changes:
        say("no node is drained or resumed")
    elif not really:
        say("these commands were not run; --act runs them")
    return found


async def _has_changed(
    item: Decision, scheduler: Scheduler, before: Standing, say: Callable[[str], None], log_file: Path | None
) -> bool:
    """Whether somebody else changed the node since the decision: then it is left to them."""
    try:
        now = await scheduler.standing(item.node)
    except ExecutorError as error:
        raise UsageError(f"{item.node} could not be changed: {error.message}") from None
    if now == before:
        return False
    state = "in service" if now.in_service else f"out of service: {now.reason or 'no reason given'}"
    why = f"somebody else changed it during the run; it is {state}"
    _write(log_file, item, "", f"left: {why}")
    say(f"{item.node} is left as it is: {why}")
    return True


async def _one(
    item: Decision, command: Command, really: bool, say: Callable[[str], None], log_file: Path | None
) -> None:
    shown = shlex.join(command)
    if not really:
        say(shown)
        _write(log_file, item, shown, "not run")
        return
    try:
        ran = await run_tool(command, deadline_s=ANSWER_S)
    except ExecutorError as error:
        _write(log_file, item, shown, error.message)
        raise UsageError(f"{item.node} could not be changed: {error.message}") from None
    result = "done" if not ran.code else ran.last_error or f"exit code {ran.code}"
    _write(log_file, item, shown, result)
    if ran.code:
        raise UsageError(f"{item.node} could not be changed: `{shown}`: {result}")
    say(f"{item.action} {item.node}: {item.reason}")
    LOG.info("ran %s", shown)


def _write(log_file: Path | None, item: Decision, command: str, result: str) -> None:
    if log_file is None:
        return
    line = {
        "at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "node": item.node,
        "action": item.action,
        "reason": item.reason,
        "command": command,
        "result": result,
    }
    try:
        with log_file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")
    except OSError as error:
        raise UsageError(f"--act-log {log_file}: {error.strerror}; nothing further was changed") from None
