"""What a launcher will find: its tools on this node, and whether this node may log in to the others."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from preflight.agent.command import run
from preflight.agent.wire import ProbeUnavailable

#: A tool that takes longer to print its version is reported as late, which is an observation.
VERSION_WITHIN_S = 3.0
#: Time limits of one login, and of all of them together.
LOGIN_S, LOGINS_S = 3.0, 6.0
_MAX_PARALLEL = 8
#: How to get the version of these quickly; others are not run, because a launcher in Python imports its framework
#: first.
_VERSION = {
    "pdsh": ("-V",),
    "clush": ("--version",),
    "ssh": ("-V",),
    "mpirun": ("--version",),
    "mpiexec": ("--version",),
    "orted": ("--version",),
    "prted": ("--version",),
    "srun": ("--version",),
}


@dataclass(frozen=True)
class Tool:
    """A program by name. `path` is empty if there is no executable of that name; `took_s` is None if it was not run."""

    name: str
    path: str = ""
    version: str = ""
    took_s: float | None = None
    problem: str = ""


@dataclass(frozen=True)
class Tools:
    """The requested tools, and the PATH they were searched on."""

    tools: list[Tool] = field(default_factory=list)
    search_path: str = ""


def tools(params: dict[str, Any]) -> Tools:
    """Search for each of `params["names"]` on PATH and beside this interpreter; get the version of the quick ones."""
    search = os.environ.get("PATH", os.defpath)
    folder = os.path.dirname(sys.executable or "") if params.get("beside") else ""
    return Tools([_tool(str(name), search, folder) for name in params["names"]], search)


def _tool(name: str, search: str, folder: str) -> Tool:
    # `pdsh|clush` is found if either of them is.
    for alternative in name.split("|"):
        path = shutil.which(alternative, path=search) or (shutil.which(alternative, path=folder) if folder else None)
        if path is None:
            continue
        arguments = _VERSION.get(alternative)
        if arguments is None:
            return Tool(name, path)
        try:
            ran = run([path, *arguments], deadline_s=VERSION_WITHIN_S)
        except ProbeUnavailable as error:
            return Tool(name, path, problem=error.reason)
        reported = [line.strip() for line in (ran.output + "\n" + ran.error).splitlines() if line.strip()]
        return Tool(name, path, reported[0][:120] if reported else "", round(ran.took_s, 3))
    return Tool(name)


@dataclass(frozen=True)
class Login:
    """One attempt to log in to `target` and run `true`. `exit_code` is None if it did not end in time."""

    target: str
    exit_code: int | None = None
    said: str = ""
    took_s: float = 0.0


@dataclass(frozen=True)
class Logins:
    """The results of the attempts; `untried` are targets for which there was no time."""

    logins: list[Login] = field(default_factory=list)
    untried: list[str] = field(default_factory=list)


def logins(params: dict[str, Any]) -> Logins:
    """Log in to each of `params["targets"]` from this node with ssh, without a terminal or a prompt, and run `true`.

    `params["options"]` are further arguments of ssh, as the job's launcher passes them. Nothing is written on either
    side: no control socket is made or used, and unknown host keys are not added.
    """
    if shutil.which("ssh") is None:
        raise ProbeUnavailable("missing", "`ssh` is not on PATH")
    options = [str(word) for word in params.get("options", [])]
    waiting = [str(target) for target in params["targets"]]
    until = time.monotonic() + LOGINS_S
    done: dict[str, Login] = {}
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                if not waiting or time.monotonic() > until - LOGIN_S / 2:
                    return
                target = waiting.pop(0)
            login = _login(target, options)
            with lock:
                done[target] = login

    workers = [threading.Thread(target=work, daemon=True) for _ in range(min(_MAX_PARALLEL, len(waiting)))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(max(0.0, until + LOGIN_S - time.monotonic()))
    wanted = [str(target) for target in params["targets"]]
    with lock:
        return Logins(
            [done[target] for target in wanted if target in done], [target for target in wanted if target not in done]
        )


def _login(target: str, options: list[str]) -> Login:
    chosen = {
        "BatchMode": "yes",
        "ConnectTimeout": str(int(LOGIN_S) - 1),
        "ControlMaster": "no",
        "ControlPath": "none",
        "PermitLocalCommand": "no",
        "ClearAllForwardings": "yes",
        "ForwardAgent": "no",
        "ForwardX11": "no",
        "LogLevel": "INFO",
    }
    words = [word for name, value in chosen.items() for word in ("-o", f"{name}={value}")]
    began = time.monotonic()
    try:
        ran = run(["ssh", "-n", "-T", *words, *options, "--", target, "true"], deadline_s=LOGIN_S)
    except ProbeUnavailable as error:
        return Login(target, None, error.reason if error.kind != "timeout" else "", round(time.monotonic() - began, 3))
    lines = [line.strip() for line in ran.error.splitlines() if line.strip()]
    return Login(target, ran.exit_code, "\n".join(lines[-6:])[-1000:], round(ran.took_s, 3))
