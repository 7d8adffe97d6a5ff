"""All settings of this node's kernel, named as in sysctl, and of its modules."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from preflight._util.redaction import scrub
from preflight.agent.cheap import cheap
from preflight.agent.wire import ProbeUnavailable

ROOT = "/proc/sys"
MODULES = "/sys/module"
#: Not settings: counters, keys, and values that differ on every node or at every read.
VOLATILE = (
    *("kernel.random.", "kernel.ns_last_pid", "kernel.pty.nr", "kernel.hostname", "kernel.domainname"),
    *("kernel.tainted", "net.ipv4.tcp_fastopen_key", "sunrpc.transports", "fs.binfmt_misc."),
    *("fs.file-nr", "fs.inode-nr", "fs.inode-state", "fs.dentry-state", "fs.quota.", "fs.aio-nr"),
    *("net.netfilter.nf_conntrack_count", "net.netfilter.nf_conntrack_generation"),
    # Not even read: reading makes every processor add up its counters, including isolated ones.
    "vm.stat_refresh",
)
#: Interfaces that appear and disappear with containers and virtual machines.
TRANSIENT_INTERFACES = (
    *("veth", "docker", "br-", "cali", "cni", "flannel", "lxc", "tap", "vnet", "virbr", "kube-", "ifb", "dummy"),
)
_MAX_VALUES = 8000
_MAX_LENGTH = 512


@dataclass(frozen=True)
class KernelSettings:
    """Values by name (`vm.swappiness`), words separated by one blank. `unread` counts those that this user may not
    read.

    `modules` are the parameters of loaded and built-in modules (`nvme_core.io_timeout`).
    """

    values: dict[str, str] = field(default_factory=dict)
    unread: int = 0
    modules: dict[str, str] = field(default_factory=dict)


@cheap("node")
def kernel_settings(params: dict[str, Any]) -> KernelSettings:
    """Read the kernel's settings from its own files; no tool is run.

    Raises ProbeUnavailable if there are none.
    """
    values, unread = read(ROOT)
    if not values:
        raise ProbeUnavailable("missing", f"the kernel shows no settings below {ROOT}")
    modules, hidden = read_modules(MODULES)
    return KernelSettings(values, unread + hidden, modules)


def read(root: str) -> tuple[dict[str, str], int]:
    """Every setting below a folder, and the number of unreadable ones."""
    values: dict[str, str] = {}
    unread = 0
    folders: list[tuple[str, str]] = [(root, "")]
    while folders and len(values) < _MAX_VALUES:
        folder, prefix = folders.pop()
        with Folder(folder) as opened:
            for entry, is_folder in opened.entries():
                name = prefix + entry
                if (
                    name.startswith(VOLATILE)
                    or entry == "stable_secret"
                    or (is_folder and entry.startswith(TRANSIENT_INTERFACES))
                ):
                    continue
                if is_folder:
                    folders.append((folder + "/" + entry, name + "."))
                    continue
                text = opened.setting(entry)
                if text is None:
                    unread += 1
                else:
                    values[name] = text
    return values, unread


def read_modules(root: str) -> tuple[dict[str, str], int]:
    """Every parameter of every module below a folder by `module.parameter`, and the number of unreadable ones."""
    values: dict[str, str] = {}
    unread = 0
    with Folder(root) as modules:
        listed = modules.entries()
    for module, _ in listed:
        with Folder(f"{root}/{module}/parameters") as opened:
            for name, _ in opened.entries():
                if len(values) >= _MAX_VALUES:
                    return values, unread
                text = opened.setting(name)
                if text is None:
                    unread += 1
                else:
                    values[f"{module}.{name}"] = text
    return values, unread


class Folder:
    """A folder of settings, which are opened relative to it: resolving a full path costs as much as reading.

    One that cannot be opened has no entries.
    """

    def __init__(self, path: str) -> None:
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            self._fd = -1

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *raised: Any) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def entries(self) -> list[tuple[str, bool]]:
        """The names in it, in order, and whether each is a folder."""
        if self._fd < 0:
            return []
        try:
            with os.scandir(self._fd) as entries:
                return sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
        except OSError:
            return []

    def setting(self, name: str) -> str | None:
        """The content of a file, words separated by one blank; None if it is write-only: writing starts an action."""
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK, dir_fd=self._fd)
        except OSError:
            return None
        try:
            text = " ".join(os.read(fd, _MAX_LENGTH).decode("utf-8", "replace").split())
        except OSError:
            return None
        finally:
            os.close(fd)
        # Few contain more than numbers; a command, as for core dumps, may contain anything.
        return scrub(text) if "=" in text or "@" in text or " -" in text else text
