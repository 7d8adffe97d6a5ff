"""What preflight itself is and has on this machine: Python, packs, cache, terminal, limits."""

from __future__ import annotations

import os
import platform
import resource
import secrets
import shutil
import sys
from collections.abc import Iterator, Mapping
from typing import TextIO

from preflight import __version__, catalog
from preflight.cache import Cache
from preflight.examination import Can, Look

#: An ssh connection holds a pipe for each of its three streams at our end; the rest is for our own files.
_FILES_PER_NODE, _OWN_FILES = 4, 64
#: What is lost where a group of packs is not whole.
_LOST = {
    catalog.SOURCES: ("files", "files of some kinds are not read", "lint"),
    catalog.RULES: ("rules", "some rules are not asked", "lint"),
    catalog.CHECKS: ("checks", "some checks are not made", "check"),
    catalog.EXECUTORS: ("ways", "some ways to reach nodes are missing", "check"),
    catalog.REPORTERS: ("formats", "some formats cannot be written", "all"),
}


def python() -> Look:
    """Which preflight, with which Python."""
    return Look(
        "preflight",
        "preflight",
        Can.YES,
        f"{__version__}, Python {platform.python_version()} ({sys.executable}), {platform.system()} "
        f"{platform.release()} {platform.machine()}",
    )


def packs() -> Iterator[Look]:
    """Packs and plugins: how much each group brings, and what of it cannot be loaded."""
    for group, (what, lost, _) in _LOST.items():
        loaded = catalog.load(group)
        said = f"{len(loaded.items)} from {', '.join(loaded.plugins) or 'no pack'}"
        can = Can.NO if not loaded.items else Can.PARTLY if loaded.broken else Can.YES
        broken = "; ".join(f"{one.where} of {one.plugin}: {one.why}" for one in loaded.broken[:5])
        remedy = "install preflight anew, or the pack that is named: pip install --force-reinstall preflight-train"
        yield Look(
            f"packs.{what}",
            what,
            can,
            f"{said}; broken: {broken}" if broken else said,
            "" if can is Can.YES else lost,
            "" if can is Can.YES else remedy,
        )


def cache(kept: Cache | None) -> Look:
    """Whether results can be kept, by keeping one and taking it out again."""
    lost = "every lint judges anew, and what nodes get is packed anew each time"
    if kept is None:
        remedy = "set XDG_CACHE_HOME to a folder of your own"
        return Look("cache", "cache", Can.NO, "this user has no home and no XDG_CACHE_HOME", lost, remedy)
    key, content = secrets.token_hex(32), b"preflight doctor\n"
    kept.put(key, content)
    whole = kept.get(key) == content
    kept.drop(key)
    if whole:
        return Look("cache", "cache", Can.YES, f"{kept.folder} takes entries and gives them back")
    said = f"{kept.folder} cannot be written, is not yours, or others may write there"
    remedy = f"mkdir -p {kept.folder} && chmod 700 {kept.folder}, or set XDG_CACHE_HOME to a folder of your own"
    return Look("cache", "cache", Can.NO, said, lost, remedy)


def terminal(stream: TextIO, environment: Mapping[str, str]) -> Look:
    """What the terminal can show."""
    if not stream.isatty():
        return Look("terminal", "terminal", Can.YES, "none: output goes to a file or a pipe, without colours")
    term = environment.get("TERM", "")
    columns = shutil.get_terminal_size().columns
    said = [f"{columns} columns", f"TERM={term or 'not set'}"]
    lost = []
    if environment.get("NO_COLOR") or term in ("", "dumb"):
        said.append("no colours")
        lost.append("colours")
    if "utf" not in (stream.encoding or "").lower():
        said.append(f"encoding {stream.encoding}")
        lost.append("characters beyond that encoding")
    remedy = "export TERM=xterm-256color LC_ALL=C.UTF-8" if lost else ""
    can = Can.PARTLY if lost else Can.YES
    return Look("terminal", "terminal", can, ", ".join(said), " and ".join(lost), remedy)


def limits(nodes: int) -> Look:
    """Whether so many nodes can be held open at once: a connection takes files and a process here."""
    files, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    processes, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    endless = resource.RLIM_INFINITY
    by_files = 1_000_000 if files == endless else max(0, (files - _OWN_FILES) // _FILES_PER_NODE)
    most = by_files if processes == endless or os.geteuid() == 0 else min(by_files, processes)
    shown = "any number" if files == endless else str(files)
    said = f"{shown} open files, enough for {'any number of' if most >= 1_000_000 else most} nodes at once"
    if nodes <= most:
        return Look("limits", "limits", Can.YES, said)
    wanted = nodes * _FILES_PER_NODE + _OWN_FILES
    rest = "" if hard in (endless,) or hard >= wanted else "; the hard limit is lower, and is root's to raise"
    return Look(
        "limits",
        "limits",
        Can.PARTLY,
        said,
        f"{nodes - most} of {nodes} nodes cannot be reached at the same time",
        f"ulimit -n {wanted}{rest}",
    )
