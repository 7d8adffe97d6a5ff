"""The proxy variables that a process of the job would see."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Any

PROXIES = ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
EXCEPTIONS = ("no_proxy", "NO_PROXY", "no_grpc_proxy")


@dataclass(frozen=True)
class Proxies:
    """`proxies` maps a variable to `scheme://host:port`, without user and password; `exceptions` to its entries."""

    proxies: dict[str, str] = field(default_factory=dict)
    exceptions: dict[str, list[str]] = field(default_factory=dict)


def proxies(params: dict[str, Any]) -> Proxies:
    """The proxy variables of this process. Run it in the job context, where they are those of the ranks."""
    return Proxies(
        {name: without_user(os.environ[name]) for name in PROXIES if os.environ.get(name)},
        {name: entries(os.environ[name]) for name in EXCEPTIONS if os.environ.get(name)},
    )


def without_user(text: str) -> str:
    """`http://proxy:3128` from `http://me:secret@proxy:3128/`: credentials of a proxy never leave the node."""
    scheme, separator, rest = text.rpartition("://")
    # The text before the last @ may be a password with any characters.
    host = rest.rpartition("@")[2].split("/")[0].split("?")[0]
    plain = re.sub(r"[^\w.:\[\]-]", "?", host)
    return "{}://{}".format(re.sub(r"\W", "?", scheme), plain) if separator else plain


def entries(text: str) -> list[str]:
    """The entries of a list of exceptions, separated by commas or blanks."""
    return [part for part in re.split(r"[,\s]+", text) if part]
