"""Forwards frames between two interfaces, each after a delay: `relay.py A B MILLISECONDS JITTER`, until stdin ends."""

from __future__ import annotations

import heapq
import random
import select
import socket
import sys
import time

#: From linux/if_ether.h: frames of every protocol. From linux/if_packet.h: frames sent by this machine.
_EVERY, _OUTGOING = 0x0003, 4
_MAX_WAITING = 20000


def opened(name: str) -> socket.socket:
    """A socket for whole frames of one interface."""
    found = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_EVERY))
    found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    found.bind((name, _EVERY))
    # PACKET_ADD_MEMBERSHIP of PACKET_MR_PROMISC: frames for the node, not only for this port.
    index = socket.if_nametoindex(name).to_bytes(4, sys.byteorder)
    found.setsockopt(263, 1, index + (1).to_bytes(2, sys.byteorder) + bytes(10))
    found.setblocking(False)
    return found


def main(here: str, there: str, milliseconds: str, jitter: str) -> None:
    """Relay until standard input is closed."""
    delay_s, jitter_s = float(milliseconds) / 1000, float(jitter) / 1000
    ends = [opened(here), opened(there)]
    waiting: list[tuple[float, int, int, bytes]] = []
    number = 0
    print("relaying", flush=True)
    while True:
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, _, to, frame = heapq.heappop(waiting)
            try:
                ends[to].send(frame)
            except OSError:
                continue
        left = waiting[0][0] - now if waiting else 1.0
        ready, _, _ = select.select([*ends, sys.stdin], [], [], max(0.0, left))
        if sys.stdin in ready and not sys.stdin.buffer.read1(1):
            return
        for index, end in enumerate(ends):
            if end not in ready:
                continue
            for _ in range(200):
                try:
                    frame, address = end.recvfrom(65536)
                except BlockingIOError:
                    break
                if address[2] != _OUTGOING and len(waiting) < _MAX_WAITING:
                    number += 1
                    due = time.monotonic() + delay_s + random.uniform(-jitter_s, jitter_s)
                    heapq.heappush(waiting, (due, number, 1 - index, frame))


if __name__ == "__main__":
    main(*sys.argv[1:])
