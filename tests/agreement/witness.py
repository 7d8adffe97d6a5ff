"""The program of a generated job: it records how it was started in a file of its own, and ends."""

import json
import os
import socket
import sys
import uuid
from pathlib import Path


def write(arguments=None, rank=None, world=None):
    """Write the arguments, the environment and the host of this process; a program may know its rank otherwise."""
    given = sys.argv[1:] if arguments is None else arguments
    environment = dict(os.environ)
    if rank is not None:
        environment.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
    seen = {"arguments": given, "environment": environment, "host": socket.gethostname()}
    path = Path(__file__).resolve().parents[1] / "seen" / f"{uuid.uuid4().hex}.part"
    path.write_text(json.dumps(seen))
    path.rename(path.with_suffix(".json"))


if __name__ == "__main__":
    write()
