"""Finds the ranks that share a machine: they share its cores, and their messages to each other never leave it.

Not every launcher provides this information, and where processes represent nodes it is configured.
"""

from __future__ import annotations

import hashlib
import os
import socket
from typing import Any, List, Tuple

from reference_trainer.collective.group import Collectives

_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_NETWORK = "/proc/self/ns/net"


def identity() -> int:
    """A number that is the same in all processes of one machine and network namespace, below 2^56."""
    parts = [socket.gethostname()]
    try:
        with open(_BOOT_ID) as file:
            parts.append(file.read().strip())
        parts.append(str(os.stat(_NETWORK).st_ino))
    except OSError:
        pass
    return int.from_bytes(hashlib.sha256("\n".join(parts).encode()).digest()[:7], "big")


def device_identity(torch: Any, device: Any) -> int:
    """A number that is the same in all processes of one machine that use the same GPU, below 2^56; 0 on the host."""
    if device.type != "cuda":
        return 0
    properties = torch.cuda.get_device_properties(device)
    # Without an identifier (before torch 2.4) the number must do: it depends on what the process may see.
    name = str(getattr(properties, "uuid", "") or "%s/%s" % (os.environ.get("CUDA_VISIBLE_DEVICES", ""), device.index))
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big")


def neighbours(torch: Any, collectives: Collectives, world_size: int, device: Any) -> Tuple[List[int], List[int]]:
    """The ranks on this rank's machine and those on its device, including itself, in order. Every rank takes part."""
    mine = torch.tensor([identity(), device_identity(torch, device)], dtype=torch.int64, device=device)
    gathered = [torch.zeros_like(mine) for _ in range(world_size)]
    collectives.all_gather(gathered, mine, "which ranks share a machine")
    own, found = mine.tolist(), [tensor.tolist() for tensor in gathered]
    together = [rank for rank, other in enumerate(found) if other[0] == own[0]]
    return together, [rank for rank in together if found[rank][1] == own[1]]
