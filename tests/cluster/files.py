"""The text of every private file of a virtual node."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from .namespace import HOME, base_environment

__all__ = ["etc_files", "home_files", "hosts_text", "sshd_config"]

_SSH_CLIENT = f"""\
Host *
  User root
  BatchMode yes
  IdentityFile {HOME}/.ssh/id_ed25519
  IdentitiesOnly yes
  UserKnownHostsFile {HOME}/.ssh/known_hosts
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  UpdateHostKeys no
  # Ten times quicker than the default key exchange, and these are throw-away keys.
  KexAlgorithms curve25519-sha256
"""

_SSHD = """\
Port 22
ListenAddress 0.0.0.0
HostKey /etc/ssh/cluster_host_key
AuthorizedKeysFile /etc/ssh/authorized_keys
PidFile /run/sshd.pid
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
UseDNS no
PrintMotd no
PrintLastLog no
AllowTcpForwarding yes
MaxSessions 100
MaxStartups 500
LoginGraceTime 30
AcceptEnv LANG LC_*
Subsystem sftp internal-sftp
"""


def sshd_config(environment: Mapping[str, str] | None = None) -> str:
    """The sshd configuration; `environment` is given to every session."""
    variables = {"PATH": base_environment()["PATH"]} | dict(environment or {})
    # sshd reads only the first SetEnv line, so it holds all variables.
    return _SSHD + "SetEnv " + " ".join(f'"{name}={value}"' for name, value in variables.items()) + "\n"


def hosts_text(addresses: Iterable[tuple[str, str]]) -> str:
    """`/etc/hosts` from (name, address) pairs."""
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    lines += [f"{address} {name}" for name, address in addresses]
    return "\n".join(lines) + "\n"


def etc_files(name: str, hosts: str, host_key: str, user_key_public: str) -> dict[str, tuple[str, int]]:
    """Everything under `/etc` that differs from the machine's: path -> (text, mode)."""
    machine_id = hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()
    return {
        "hostname": (f"{name}\n", 0o644),
        "hosts": (hosts, 0o644),
        "machine-id": (f"{machine_id}\n", 0o444),
        "nsswitch.conf": ("passwd: files\ngroup: files\nshadow: files\nhosts: files dns\n", 0o644),
        # No name server answers: nothing listens on the loopback, so DNS fails at once.
        "resolv.conf": ("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n", 0o644),
        "passwd": (_passwd(Path("/etc/passwd").read_text(encoding="utf-8")), 0o644),
        "shadow": ("root:*:19000:0:99999:7:::\nsshd:!:19000::::::\n", 0o600),
        "ssh/ssh_config": ("", 0o644),
        "ssh/sshd_config": (sshd_config(), 0o644),
        "ssh/cluster_host_key": (host_key, 0o600),
        "ssh/authorized_keys": (user_key_public, 0o600),
    }


def home_files(host_key_public: str, user_key: str) -> dict[str, tuple[str, int]]:
    """Everything in root's home: path -> (text, mode)."""
    return {
        ".ssh/config": (_SSH_CLIENT, 0o600),
        ".ssh/id_ed25519": (user_key, 0o600),
        # One host key for all nodes, so one line for every name and address.
        ".ssh/known_hosts": (f"* {host_key_public}", 0o600),
    }


def _passwd(text: str) -> str:
    """The machine's accounts, with root's home moved and an account for sshd.

    ssh takes the home directory from here and not from $HOME.
    """
    shell = "/bin/bash" if Path("/bin/bash").exists() else "/bin/sh"
    kept = [line for line in text.splitlines() if not line.startswith(("root:", "sshd:", "#"))]
    root = f"root:x:0:0:root:{HOME}:{shell}"
    sshd = "sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin"
    return "\n".join([root, *kept, sshd]) + "\n"
