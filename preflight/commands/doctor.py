"""The checks of this machine, its executors and hosts for `doctor`, and the text about them."""

from __future__ import annotations

import os
import platform
import secrets
import shutil
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import anyio
from rich.text import Text

from preflight import __version__
from preflight._util.cache import Cache, default_cache
from preflight._util.json_output import schema_of
from preflight._util.sanitize import clean
from preflight._util.validation import type_adapter
from preflight.engine.report import ExitCode
from preflight.executors.base import Executor, ExecutorError, run_tool
from preflight.model.doctor_items import Capability, DoctorItem, Surroundings
from preflight.model.recording import Node, NodeRecord
from preflight.plugins import registry
from preflight.reporters.base import Style
from preflight.reporters.text.full_report import Sheet
from preflight.reporters.text.groups import count
from preflight.runner.preparation import choose, named_nodes, recognising_executors
from preflight.runner.session import open_fleet

#: An ssh connection uses a pipe for each of its three streams; the rest is for our own files.
_FILES_PER_NODE, _OWN_FILES = 4, 64
#: Memory for a recording of ten thousand nodes and its judgement.
_MIN_FREE_BYTES = 1 << 30
#: The consequence if a group of packs is incomplete.
_CONSEQUENCES = {
    registry.SOURCES: ("files", "some kinds of files are not read", "lint"),
    registry.RULES: ("rules", "some rules are not run", "lint"),
    registry.CHECKS: ("checks", "some checks are not run", "check"),
    registry.EXECUTORS: ("ways", "some executors are missing", "check"),
    registry.REPORTERS: ("formats", "some formats cannot be written", "all"),
}


def python() -> DoctorItem:
    """Return the versions of preflight and Python."""
    return DoctorItem(
        "preflight",
        "preflight",
        Capability.YES,
        f"{__version__}, Python {platform.python_version()} ({sys.executable}), {platform.system()} "
        f"{platform.release()} {platform.machine()}",
    )


def packs() -> Iterator[DoctorItem]:
    """Yield the packs and plugins: the number of items in each group, and those that cannot be loaded."""
    for group, (what, lost, _) in _CONSEQUENCES.items():
        loaded = registry.load(group)
        text = f"{len(loaded.items)} from {', '.join(loaded.plugins) or 'no pack'}"
        capability = Capability.NO if not loaded.items else Capability.PARTLY if loaded.broken else Capability.YES
        broken = "; ".join(f"{item.where} of {item.plugin}: {item.why}" for item in loaded.broken[:5])
        remedy = "reinstall preflight, or the named pack: pip install --force-reinstall preflight-train"
        yield DoctorItem(
            f"packs.{what}",
            what,
            capability,
            f"{text}; broken: {broken}" if broken else text,
            "" if capability is Capability.YES else lost,
            "" if capability is Capability.YES else remedy,
        )


def cache(cache: Cache | None) -> DoctorItem:
    """Return whether results can be cached, by storing an entry and reading it back."""
    lost = "every lint starts from scratch, and the bundle for nodes is built each time"
    if cache is None:
        remedy = "set XDG_CACHE_HOME to a folder that you own"
        return DoctorItem(
            "cache",
            "cache",
            Capability.NO,
            "this user has no home directory and XDG_CACHE_HOME is not set",
            lost,
            remedy,
        )
    key, content = secrets.token_hex(32), b"preflight doctor\n"
    cache.put(key, content)
    whole = cache.get(key) == content
    cache.drop(key)
    if whole:
        return DoctorItem("cache", "cache", Capability.YES, f"{cache.folder} can be written and read")
    text = f"{cache.folder} is not writable, not owned by you, or writable by others"
    remedy = f"mkdir -p {cache.folder} && chmod 700 {cache.folder}, or set XDG_CACHE_HOME to a folder that you own"
    return DoctorItem("cache", "cache", Capability.NO, text, lost, remedy)


def machine(folder: Path) -> DoctorItem:
    """Return processors, memory, the disk that `folder` is on, interfaces and user, as psutil reports them."""
    import psutil

    user, processors = psutil.Process().username(), len(psutil.Process().cpu_affinity())
    memory, disk = psutil.virtual_memory(), psutil.disk_usage(str(folder))
    up = sorted(name for name, stats in psutil.net_if_stats().items() if stats.isup and name != "lo")
    details = (
        f"user {user}; {processors} of {psutil.cpu_count()} processors usable; {_gib(memory.available)} of "
        f"{_gib(memory.total)} of memory available; {_gib(disk.free)} free on the disk of {folder}; "
        f"interfaces up: {', '.join(up) or 'none'}"
    )
    scarce = [
        (memory.available < _MIN_FREE_BYTES, "memory", "end processes that use much memory: ps aux --sort=-rss | head"),
        (disk.free < _MIN_FREE_BYTES, "space for reports and recordings", f"free space on the disk of {folder}"),
    ]
    lacking = [(what, remedy) for is_scarce, what, remedy in scarce if is_scarce]
    if not lacking:
        return DoctorItem("machine", "machine", Capability.YES, details)
    lost = f"a large run may fail for lack of {' and '.join(what for what, _ in lacking)}"
    return DoctorItem(
        "machine", "machine", Capability.PARTLY, details, lost, "; ".join(remedy for _, remedy in lacking)
    )


def _gib(number: int) -> str:
    return f"{number / (1 << 30):.1f} GiB"


def terminal(stream: TextIO, environment: Mapping[str, str]) -> DoctorItem:
    """Return the capabilities of the terminal."""
    if not stream.isatty():
        return DoctorItem("terminal", "terminal", Capability.YES, "output goes to a file or a pipe, without colours")
    term = environment.get("TERM", "")
    columns = shutil.get_terminal_size().columns
    text = [f"{columns} columns", f"TERM={term or 'not set'}"]
    lost = []
    if environment.get("NO_COLOR") or term in ("", "dumb"):
        text.append("no colours")
        lost.append("colours")
    if "utf" not in (stream.encoding or "").lower():
        text.append(f"encoding {stream.encoding}")
        lost.append("characters outside that encoding")
    remedy = "export TERM=xterm-256color LC_ALL=C.UTF-8" if lost else ""
    capability = Capability.PARTLY if lost else Capability.YES
    return DoctorItem("terminal", "terminal", capability, ", ".join(text), " and ".join(lost), remedy)


def limits(nodes: int) -> DoctorItem:
    """Return whether many nodes can be connected at the same time: each connection uses files and a process here."""
    import psutil

    own = psutil.Process()
    files, hard = own.rlimit(psutil.RLIMIT_NOFILE)
    processes, _ = own.rlimit(psutil.RLIMIT_NPROC)
    endless = psutil.RLIM_INFINITY
    by_files = 1_000_000 if files == endless else max(0, (files - _OWN_FILES) // _FILES_PER_NODE)
    most = by_files if processes == endless or os.geteuid() == 0 else min(by_files, processes)
    shown = "any number" if files == endless else str(files)
    text = f"{shown} open files, enough for {'any number of' if most >= 1_000_000 else most} nodes at once"
    if nodes <= most:
        return DoctorItem("limits", "limits", Capability.YES, text)
    wanted_files = nodes * _FILES_PER_NODE + _OWN_FILES
    rest = "" if hard in (endless,) or hard >= wanted_files else "; the hard limit is lower, and only root can raise it"
    return DoctorItem(
        "limits",
        "limits",
        Capability.PARTLY,
        text,
        f"{nodes - most} of {nodes} nodes cannot be reached at the same time",
        f"ulimit -n {wanted_files}{rest}",
    )


_REQUEST_S = 3.0
#: Exit code of ssh-add if there is no agent.
_NO_AGENT = 2


def executors() -> tuple[Executor, ...]:
    """Return every executor except the one that replays recordings, for which a machine needs nothing."""
    return tuple(item for item in registry.load(registry.EXECUTORS).items if item.name != "replay")


async def executor_item(executor: Executor, environment: Mapping[str, str], *, deadline_s: float) -> DoctorItem:
    """Return whether an executor can be used here, as the executor itself reports."""
    about = f"--on {executor.name}"
    lost = f"{about} cannot be used to reach nodes"
    here = {found.name: reason for found, reason in recognising_executors(environment)}.get(executor.name, "")
    try:
        with anyio.fail_after(deadline_s):
            usable = await executor.check_usable(environment, deadline_s=deadline_s)
    except TimeoutError:
        return DoctorItem(
            f"way.{executor.name}", about, Capability.UNKNOWN, f"it did not respond within {deadline_s:g} s", lost
        )
    except ExecutorError as error:
        usable, _, remedy = error.message.rpartition("; ")
        known = Capability.UNKNOWN if error.kind == "timeout" else Capability.NO
        return DoctorItem(f"way.{executor.name}", about, known, usable or error.message, lost, remedy if usable else "")
    finally:
        with anyio.CancelScope(shield=True), anyio.move_on_after(_REQUEST_S):
            await executor.aclose()
    if not usable:
        about_use = "it does not report whether it can be used"
        return DoctorItem(f"way.{executor.name}", about, Capability.UNKNOWN, about_use, "", "")
    return DoctorItem(
        f"way.{executor.name}", about, Capability.YES, f"{usable}; chosen by default: {here}" if here else usable
    )


async def keys(environment: Mapping[str, str], home: Path) -> DoctorItem:
    """Return the keys that ssh could offer: the number in an agent, and the names of key files. No key is read."""
    try:
        files = sorted(path.stem for path in (home / ".ssh").glob("id_*.pub"))
    except OSError:
        files = []
    usable = [f"key files: {', '.join(files)}" if files else "no key files with the usual names"]
    held = 0
    if environment.get("SSH_AUTH_SOCK"):
        try:
            ran = await run_tool(["ssh-add", "-l"], deadline_s=_REQUEST_S, environment=environment)
        except ExecutorError as error:
            usable.append(f"the agent does not respond ({error.kind})")
        else:
            held = len(ran.output.splitlines()) if ran.code == 0 else 0
            usable.append("no agent responds at SSH_AUTH_SOCK" if ran.code == _NO_AGENT else f"an agent has {held}")
    else:
        usable.append("no agent (SSH_AUTH_SOCK is not set)")
    if held or files:
        return DoctorItem("ssh.keys", "SSH keys", Capability.YES, "; ".join(usable))
    return DoctorItem(
        "ssh.keys",
        "SSH keys",
        Capability.PARTLY,
        "; ".join(usable),
        "hosts that require a key reject preflight, which cannot type a password; a ticket or certificate may work",
        "ssh-keygen -t ed25519 && ssh-copy-id HOST, or eval $(ssh-agent) && ssh-add",
    )


async def hosts(executor: Executor, nodes: Sequence[Node], *, deadline_s: float) -> tuple[DoctorItem, ...]:
    """Return whether an agent starts on each of these nodes, in the same way as for a check."""
    try:
        async with open_fleet(executor, nodes, deadline_s=deadline_s, trainer=False) as fleet:
            records = fleet.records
    finally:
        with anyio.CancelScope(shield=True), anyio.move_on_after(_REQUEST_S):
            await executor.aclose()
    return tuple(_node_item(executor, record) for record in records)


def _node_item(executor: Executor, record: NodeRecord) -> DoctorItem:
    name = record.node.name
    if not record.problem:
        offset = record.clock_offset_s
        clock = f", clock {offset:+.3f} s" if offset is not None else ""
        return DoctorItem(
            f"host.{name}", name, Capability.YES, f"{record.host}, Python {record.python}, as {record.user}{clock}"
        )
    problem = record.problem.removeprefix(f"{name}: ")
    usable, _, remedy = problem.rpartition("; ")
    remedy = remedy if usable else f"run `{executor.name} {name}` manually"
    return DoctorItem(f"host.{name}", name, Capability.NO, usable or problem, "nothing can be checked there", remedy)


def summary(items: Sequence[DoctorItem]) -> Iterator[str]:
    """Return the names of the executors that can be used."""
    return (
        look.id.removeprefix("way.")
        for look in items
        if look.id.startswith("way.") and look.capability is Capability.YES
    )


#: Items without which a command can do nothing.
_FOR_LINT = ("packs.files", "packs.rules")
#: Grace period after the deadline in which an item may report why it has no result.
LATE_S = 5.0
_Make = Callable[[], Awaitable[Iterable[DoctorItem]]]


def examine(
    *,
    hosts: str = "",
    hostfile: Path | None = None,
    executor: str = "",
    executor_options: Sequence[str] = (),
    pythons: Sequence[str] = (),
    environment: Mapping[str, str],
    stream: TextIO,
    deadline_s: float = 20.0,
) -> Examination:
    """Return the capabilities of this machine and what is missing. Raises UsageError.

    `pythons` are examined before those found here; nodes are reached as for a check; `deadline_s` is for each item.
    """
    surroundings = Surroundings(environment, interpreters(pythons, environment), deadline_s)
    named, _ = named_nodes(hosts, hostfile)

    async def examine_all() -> tuple[DoctorItem, ...]:
        choice = await choose(
            hosts=hosts, hostfile=hostfile, executor=executor, options=executor_options, environment=environment
        )
        return await _examine_parallel(_parts(surroundings, choice.executor, named, stream), deadline_s)

    items = anyio.run(examine_all)
    return summarize(items)


def interpreters(pythons: Sequence[str], environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the Pythons that ranks might use: the given ones, the environment's, the first on PATH, preflight's
    own.
    """
    named = [shutil.which(python) or python for python in pythons]
    active = [
        str(Path(environment[name]) / "bin" / "python")
        for name in ("VIRTUAL_ENV", "CONDA_PREFIX")
        if environment.get(name)
    ]
    folders = environment.get("PATH")
    found = shutil.which("python3", path=folders) or shutil.which("python", path=folders) or ""
    existing = [path for path in (*active, found, sys.executable) if os.access(path, os.X_OK)]
    # An environment's Python is a link to its base Python but a different interpreter, so the folder counts too.
    unique: dict[tuple[str, Path], str] = {}
    for path in (*named, *existing):
        unique.setdefault((os.path.realpath(path), Path(path).parent), path)
    return tuple(unique.values())


def _parts(
    surroundings: Surroundings, executor: Executor, named: Sequence[Node], stream: TextIO
) -> list[tuple[str, _Make]]:
    environment, deadline_s = surroundings.environment, surroundings.deadline_s

    async def at_once() -> Iterable[DoctorItem]:
        return (python(), *packs())

    async def here() -> Iterable[DoctorItem]:
        kept = await anyio.to_thread.run_sync(cache, default_cache())
        found = await anyio.to_thread.run_sync(machine, Path.cwd())
        return (kept, found, terminal(stream, environment), limits(len(named)))

    async def own_keys() -> Iterable[DoctorItem]:
        return (await keys(environment, Path(environment.get("HOME", "/"))),)

    def of_executor(choice: Executor) -> _Make:
        async def examine() -> Iterable[DoctorItem]:
            return (await executor_item(choice, environment, deadline_s=deadline_s),)

        return examine

    async def of_hosts() -> Iterable[DoctorItem]:
        return await hosts(executor, named, deadline_s=deadline_s)

    parts: list[tuple[str, _Make]] = [("preflight", at_once)]
    parts += [(f"way.{choice.name}", of_executor(choice)) for choice in executors()]
    parts.append(("ssh.keys", own_keys))
    if named:
        parts.append(("hosts", of_hosts))
    for examiner in registry.examiners()[0]:
        parts.append((examiner.where, lambda make=examiner.make: make(surroundings)))  # type: ignore[misc]
    parts += [(broken.where, _always_fails(broken.why)) for broken in registry.examiners()[1]]
    parts.append(("here", here))
    return parts


def _always_fails(why: str) -> _Make:
    async def fail() -> Iterable[DoctorItem]:
        raise RuntimeError(why)

    return fail


async def _examine_parallel(parts: Sequence[tuple[str, _Make]], deadline_s: float) -> tuple[DoctorItem, ...]:
    items_by_index: dict[int, tuple[DoctorItem, ...]] = {}

    async def take(number: int, name: str, make: _Make) -> None:
        try:
            # An item with its own deadline gives a better message than this one.
            with anyio.fail_after(deadline_s + LATE_S):
                items_by_index[number] = tuple(await make())
        except TimeoutError:
            items_by_index[number] = (
                DoctorItem(name, name, Capability.UNKNOWN, f"no response within {deadline_s + LATE_S:g} s"),
            )
        except Exception as error:
            items_by_index[number] = (
                DoctorItem(name, name, Capability.UNKNOWN, f"crashed: {type(error).__name__}: {error}"),
            )

    async with anyio.create_task_group() as group:
        for number, (name, make) in enumerate(parts):
            group.start_soon(take, number, name, make)
    return tuple(look for number in sorted(items_by_index) for look in items_by_index[number])


def summarize(items: tuple[DoctorItem, ...]) -> Examination:
    """Return the summary of all items."""
    capability = {look.id: look.capability for look in items}
    lint = all(capability.get(id) in (Capability.YES, Capability.PARTLY) for id in _FOR_LINT)
    open_ways = tuple(summary(items))
    check = bool(open_ways) and capability.get("packs.checks") in (Capability.YES, Capability.PARTLY)
    trains = [look for look in items if look.id.startswith("training.")]
    smoke = check and any(look.capability in (Capability.YES, Capability.PARTLY) for look in trains)
    code = ExitCode.GO if lint or check else ExitCode.NO_GO
    return Examination(__version__, items, lint, check, smoke, open_ways, code)


SCHEMA_VERSION = 2


@dataclass(frozen=True, slots=True)
class Examination:
    """The examined items, in a fixed order.

    `lint`, `check` and `smoke` state whether the command can do anything here; `executors` are the executors that can
    be used. `exit_code` is 0 unless nothing can be done.
    """

    version: str
    items: tuple[DoctorItem, ...]
    lint: bool
    check: bool
    smoke: bool
    executors: tuple[str, ...]
    exit_code: int
    schema_version: int = SCHEMA_VERSION


def schema() -> dict[str, Any]:
    return schema_of(type_adapter(Examination), "preflight examination")


_WORDS = {
    Capability.YES: ("yes", "green"),
    Capability.PARTLY: ("partly", "yellow"),
    Capability.NO: ("no", "red"),
    Capability.UNKNOWN: ("unknown", "yellow"),
}


def page(examination: Examination, style: Style) -> str:
    """Return the examination as text, with ANSI colours if `style` requests them."""
    sheet = Sheet(style)
    widest = min(24, max((len(item.about) for item in examination.items), default=0))
    for item in examination.items:
        if style.verbosity >= 0 or item.capability is not Capability.YES:
            _print_item(sheet, item, widest)
    sheet.line()
    sheet.line(_last_line(examination))
    return sheet.text()


def _print_item(sheet: Sheet, item: DoctorItem, widest: int) -> None:
    word, color = _WORDS[item.capability]
    label = f"{word:<8}{clean(item.about):<{widest}}  "
    sheet.wrapped(item.observed, indent=0, label=label, style=color)
    for what, text in (("lost: ", item.lost), ("do:   ", item.remedy)):
        if text:
            sheet.wrapped(text, indent=10, label=what, style="bold")


def _last_line(examination: Examination) -> Text:
    verbs = (("lint", examination.lint), ("check", examination.check), ("smoke", examination.smoke))
    capability = [verb for verb, held in verbs if held]
    missing = sum(item.capability is Capability.NO for item in examination.items)
    line = Text(
        f"CAN {', '.join(capability).upper()}" if capability else "NOTHING CAN BE CHECKED",
        style="bold green" if capability else "bold red",
    )
    executors = f" over {', '.join(examination.executors)}" if examination.executors and examination.check else ""
    line.append(f"{executors}; {count(len(examination.items), 'item')} checked, {missing} missing", style="none")
    return line
