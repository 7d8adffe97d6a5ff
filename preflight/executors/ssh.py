"""Nodes reached with the user's own OpenSSH client, and the user's own configuration.

Jump hosts, users, ports, keys, agents and tokens work because it is the same `ssh` that works by hand. Only the
control socket is ours: in a private folder, gone with us, so that no master of the user's is used, kept or ended.

Every run logs in anew, because what a login gives (limits, groups, environment) is part of what it looks at. Whoever
runs it again and again may have connections kept for a while instead.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from preflight.executors import nodefiles
from preflight.executors.base import Bundle, ExecutorError, Gathered, Option, Wanted
from preflight.executors.pipe import PipeChannel, new_nonce, start_agent
from preflight.executors.ssh_sockets import KeptFolder, PrivateFolder
from preflight.executors.tool import run_tool
from preflight.job.hostname import is_hostname
from preflight.lazy.dataclasses import dataclass
from preflight.lazy.patterns import lazy_pattern
from preflight.node import bootstrap
from preflight.recording import Node

#: ssh's own exit code for its own failures; everything else is the remote command's.
SSH_FAILED = 255
_USER = lazy_pattern(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}\$?", re.ASCII)
#: How long connections may be kept for a later run, in seconds.
_KEPT_AT_MOST_S = 3600

#: What ssh says, what kind of failure that is, and what to do; the first that matches counts. The words are
#: OpenSSH's (sshconnect.c, ssh.c, packet.c) and the C library's; C locale is set for the latter.
_WORDS: tuple[tuple[str, str, str, str], ...] = (
    (
        r"could not resolve hostname",
        "unreachable",
        "its name does not resolve here",
        "check the spelling, or give it a HostName in ~/.ssh/config",
    ),
    (
        r"during banner exchange|banner line contains|timed out waiting for.*banner",
        "timeout",
        "its port 22 accepts connections, but the ssh daemon behind it does not speak: it is frozen or overloaded",
        "look at sshd on the node, and at its MaxStartups",
    ),
    (
        r"connection refused",
        "unreachable",
        "nothing listens on its ssh port",
        "start sshd there, or set the Port in ~/.ssh/config",
    ),
    (
        r"connection timed out|operation timed out|timeout, server .* not responding",
        "timeout",
        "it does not answer",
        "check that it is up and that no firewall drops packets to its ssh port",
    ),
    (
        r"no route to host|network is unreachable|host is down",
        "unreachable",
        "there is no route to it",
        "check its address and that it is up",
    ),
    (
        r"host key verification failed|remote host identification has changed|no .* host key is known",
        "denied",
        "its host key is not known or has changed",
        "run `ssh {target} true` once by hand and decide about the key",
    ),
    (
        r"too many authentication failures",
        "denied",
        "it refused before the right key was offered",
        "name one key with IdentityFile and set IdentitiesOnly yes in ~/.ssh/config",
    ),
    (
        r"permission denied",
        "denied",
        "it does not let you in without a question",
        "make `ssh -o BatchMode=yes {target} true` work: load the key into the agent, or renew the ticket "
        "(preflight does not use control sockets of yours that are already open)",
    ),
    (
        r"cannot execute command-line and remote command",
        "denied",
        "~/.ssh/config sets a RemoteCommand for it",
        "set `RemoteCommand none` for preflight's runs",
    ),
    (
        r"kex_exchange_identification|connection (?:closed|reset) by",
        "unreachable",
        "it closed the connection before a session began",
        "look at sshd's log on the node; MaxStartups and deny lists do this, and so does a jump host that fails, whose "
        "own words `--on-option keep` hides",
    ),
    (
        r"bad configuration option|terminating, \d+ bad",
        "denied",
        "ssh does not take the user's configuration",
        "correct the line that it names",
    ),
)


def _seconds_wrong(value: str) -> str:
    fits = value.isascii() and value.isdigit() and 1 <= int(value) <= _KEPT_AT_MOST_S
    return "" if fits else f"{value!r} is no number of seconds from 1 to {_KEPT_AT_MOST_S}"


@dataclass(slots=True)
class SshExecutor:
    """Runs agents over `ssh`, one connection a node.

    `program` is the client; `arguments` are further ones for it, such as `("-F", path)`. With `keep_s` connections stay
    open for so long after their last use, and a run that was told so uses those that are.
    """

    program: str = "ssh"
    arguments: tuple[str, ...] = ()
    keep_s: int = 0
    name: str = "ssh"
    opens_named: bool = True
    _folder: PrivateFolder | KeptFolder | None = None

    @property
    def options(self) -> tuple[Option, ...]:
        """What can be told by --on-option."""
        meaning = "keep connections for so many seconds after a run, and use what an earlier one kept"
        return (Option("keep", meaning, "60", _seconds_wrong),)

    def configured(self, given: Mapping[str, str]) -> SshExecutor:
        """Another one with what was told."""
        return SshExecutor(self.program, self.arguments, int(given.get("keep", self.keep_s)))

    def detect(self, environment: Mapping[str, str]) -> str:
        """Whether this is a job of a batch system that has no way of its own into its nodes."""
        return nodefiles.reason(environment)

    async def usable(self, environment: Mapping[str, str], *, deadline_s: float) -> str:
        """Which client there is. Raises ExecutorError where there is none, or it does not take its configuration."""
        try:
            ran = await run_tool([self.program, *self.arguments, "-V"], deadline_s=deadline_s, environment=environment)
        except ExecutorError as error:
            if error.kind == "missing":
                raise ExecutorError("missing", f"{error.message}; install an OpenSSH client") from None
            raise
        lines = [line.strip() for line in f"{ran.errors}\n{ran.output}".splitlines() if line.strip()]
        if ran.code:
            raise ExecutorError("crashed", f"`{self.program} -V` ended with code {ran.code}; install an OpenSSH client")
        # A mistake in ~/.ssh/config shows only when a host is looked up.
        tried = [self.program, *self.arguments, "-G", "localhost"]
        looked = await run_tool(tried, deadline_s=deadline_s, environment=environment)
        if looked.code:
            understood = said_by_ssh("ssh", "localhost", looked.errors.splitlines(), looked.errors)
            raise understood or ExecutorError("denied", f"`{' '.join(tried)}` says {looked.last_error!r}")
        return lines[0] if lines else f"{self.program}, which does not say its version"

    async def gather(self, wanted: Wanted) -> Gathered | None:
        """The nodes of such a job; None outside of any. Raises ExecutorError when its list cannot be read."""
        found = None if wanted.named else nodefiles.nodes_in(wanted.environment)
        return Gathered(*found) if found is not None else None

    async def open(self, node: Node, *, deadline_s: float, bundle: Bundle) -> PipeChannel:
        """Start an agent on `node.address` (or its name). Raises ExecutorError that says what ssh said."""
        target = node.address or node.name
        if not is_target(target):
            raise ExecutorError("denied", f"{node.name}: {target!r} is no host name, and is not put on a command line")
        nonce = new_nonce()
        command = [self.program, *self._words(deadline_s), "--", target, bootstrap.shell_line(nonce)]
        environment = {**os.environ, "LC_ALL": "C"}
        try:
            channel = PipeChannel(command, description=f"ssh {target}", environment=environment)
        except OSError as error:
            raise ExecutorError(
                "missing",
                f"{node.name}: `{self.program}` cannot be run here: {error.strerror}; install an OpenSSH client",
            ) from error

        def diagnose(code: int | None, words: str) -> ExecutorError:
            return explain(node.name, target, code, words, deadline_s=deadline_s)

        await start_agent(channel, node.name, nonce, bundle=bundle, diagnose=diagnose, deadline_s=deadline_s)
        return channel

    async def aclose(self) -> None:
        """Remove the folder of our control sockets, unless they are to be kept."""
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.leave()

    def _words(self, deadline_s: float) -> list[str]:
        if self._folder is None:
            self._folder = KeptFolder() if self.keep_s else PrivateFolder()
        chosen = {
            # A question nobody can answer would wait for ever.
            "BatchMode": "yes",
            # Before our own deadline, so that ssh itself can say which of its steps was not answered.
            "ConnectTimeout": str(max(1, int(deadline_s) - 1)),
            "ControlMaster": "auto",
            "ControlPath": f"{self._folder.path}/%C",
            "ControlPersist": str(self.keep_s) if self.keep_s else "no",
            "ServerAliveInterval": "2",
            "ServerAliveCountMax": "2",
            # Forwards of the user's would fail on ports that their own sessions hold.
            "ClearAllForwardings": "yes",
            "ForwardAgent": "no",
            "ForwardX11": "no",
            "PermitLocalCommand": "no",
            # QUIET in the user's configuration would hide why a connection failed.
            "LogLevel": "INFO",
        }
        return [
            "-T",
            *(part for key, value in chosen.items() for part in ("-o", f"{key}={value}")),
            *self.arguments,
        ]


def is_target(text: str) -> bool:
    """Whether `text` is `host` or `user@host` by a strict grammar, which admits no option and no shell syntax."""
    user, at, host = text.rpartition("@")
    return is_hostname(host) and (not at or _USER.fullmatch(user) is not None)


def explain(name: str, target: str, code: int | None, words: str, *, deadline_s: float) -> ExecutorError:
    """What became of an ssh that ended with `code` (None: that had not by the deadline) and said `words`."""
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    missing = next((line for line in lines if line.startswith(bootstrap.NO_PYTHON_MARK)), None)
    if missing is not None or code == bootstrap.NO_PYTHON:
        tried = (missing or "").removeprefix(bootstrap.NO_PYTHON_MARK).split()
        listed = ", ".join(tried) if tried else "none of " + ", ".join(bootstrap.INTERPRETERS) + " is there"
        return ExecutorError(
            "missing", f"no Python >= 3.8 on {name}: tried {listed}; preflight's agent needs one", words
        )
    said = f' (ssh said: "{lines[-1]}")' if lines else ""
    if code is None or code == SSH_FAILED:
        understood = said_by_ssh(name, target, lines, words)
        if understood is not None:
            return understood
    if code is None:
        return ExecutorError(
            "timeout",
            f"{name}: no agent within {deadline_s:g} s, waiting for `ssh {target}` to log in and start Python{said}; "
            "a slow start-up file of the login shell, a slow home directory or a frozen sshd does this",
            words,
        )
    if code == SSH_FAILED:
        return ExecutorError("unreachable", f"{name}: ssh could not reach it{said}", words)
    return ExecutorError(
        "crashed", f"{name}: the command that starts the agent ended with exit code {code} there{said}", words
    )


def said_by_ssh(name: str, target: str, lines: Sequence[str], words: str) -> ExecutorError | None:
    """What one of `lines` means if it is a complaint of ssh's own; None when there is none among them."""
    for pattern, kind, meaning, remedy in _WORDS:
        line = next((line for line in reversed(lines) if re.search(pattern, line, re.IGNORECASE)), None)
        if line is not None:
            told = f'{name}: {meaning} (ssh said: "{line}"); {remedy.format(target=target)}'
            return ExecutorError(kind, told, words)
    return None


EXECUTOR = SshExecutor()
