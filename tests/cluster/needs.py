"""Whether virtual nodes are possible on this machine, or the reasons why not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

__all__ = ["needs"]

_TOOLS = {
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "prlimit": "util-linux",
    "mount": "util-linux",
    "ip": "iproute2",
    "nft": "nftables",
    "ethtool": "ethtool",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "/usr/sbin/sshd": "openssh-server",
    "cc": "gcc and libc6-dev",
}

# Tries every operation of a cluster once in a small namespace.
_TRIAL = """
set -e
mount -t tmpfs trial /run
mkdir /run/upper /run/work
mount -t overlay -o lowerdir=/etc,upperdir=/run/upper,workdir=/run/work trial /etc
ip link add trial-bridge type bridge
ip link add trial-a type veth peer name trial-b
nft add table inet trial
mount -t sysfs trial /sys
mount -t proc trial /proc
"""


def needs() -> list[str]:
    """The reasons why a `Cluster` cannot be built here; empty if it can. Leaves nothing behind."""
    if not sys.platform.startswith("linux"):
        return [f"virtual nodes need Linux namespaces, and this is {sys.platform}"]
    if os.geteuid() != 0:
        return ["virtual nodes need root, to make network namespaces"]
    reasons = [
        f"{tool} is missing (Debian package: {package})"
        for tool, package in sorted(_TOOLS.items())
        if shutil.which(tool, path=_search_path()) is None
    ]
    if not Path("/srv").is_dir():
        reasons.append("there is no folder /srv to mount the nodes' data on")
    return reasons or _trial()


def _search_path() -> str:
    """PATH and the administrators' folders, which may be missing from root's PATH."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


def _trial() -> list[str]:
    command = ["unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child"]
    try:
        done = subprocess.run(
            [*command, "sh", "-c", _TRIAL],
            capture_output=True,
            text=True,
            timeout=20,
            stdin=subprocess.DEVNULL,
            env={"PATH": _search_path(), "LANG": "C"},
            check=False,
        )
    except subprocess.TimeoutExpired:
        return ["a trial namespace was not ready after 20 s"]
    if done.returncode == 0:
        return []
    said = done.stderr.strip().splitlines()
    return [f"a trial namespace failed: {said[-1] if said else f'status {done.returncode}'}"]
