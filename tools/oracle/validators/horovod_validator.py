"""Parses each command line with horovodrun's own parser, then its hosts as horovodrun does before it starts anything.

The source distribution's Python is unpacked beside the environment; nothing of its C++ is built.
"""

import contextlib
import io
import subprocess
import sys
import tarfile
from pathlib import Path

from verdict_lines import main

VERSION = "0.28.1"
FOLDER = Path(sys.prefix) / "horovod-source"


def unpacked():
    if not (FOLDER / "horovod").is_dir():
        FOLDER.mkdir(exist_ok=True)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
        subprocess.run([*pip, "--no-build-isolation", "--dest", str(FOLDER), f"horovod=={VERSION}"], check=True)
        with tarfile.open(FOLDER / f"horovod-{VERSION}.tar.gz") as archive:
            archive.extractall(FOLDER, filter="data")
        (FOLDER / f"horovod-{VERSION}" / "horovod").rename(FOLDER / "horovod")
    return FOLDER


sys.path.insert(0, str(unpacked()))
from horovod.runner import launch  # noqa: E402
from horovod.runner.common.util import hosts  # noqa: E402


def validate(case):
    """Do what `horovodrun` does with a command line before it connects to any host (launch.py, _run)."""
    sys.argv = list(case["command"])
    words = io.StringIO()
    with contextlib.redirect_stderr(words):
        try:
            args = launch.parse_args()
        except SystemExit:
            raise ValueError(words.getvalue().strip().splitlines()[-1]) from None
    if not args.hosts and not args.host_discovery_script:
        args.hosts = hosts.parse_host_files(args.hostfile) if args.hostfile else f"localhost:{args.num_proc}"
    if args.hosts:
        _, slots = hosts.parse_hosts_and_slots(args.hosts)
        if launch._is_elastic(args):
            if len(slots) < 2 and not args.host_discovery_script:
                raise ValueError("Cannot run in fault tolerance mode with fewer than 2 hosts.")
        else:
            hosts.get_host_assignments(hosts.parse_hosts(args.hosts), args.num_proc, args.num_proc)


if __name__ == "__main__":
    main(validate, contextlib.nullcontext, same_here=True)
