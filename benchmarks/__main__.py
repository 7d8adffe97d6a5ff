"""`python -m benchmarks` runs the benchmarks that work on any machine; `python -m benchmarks NAME [...]` runs one."""

from __future__ import annotations

import importlib
import os
import sys

#: Quick benchmarks that need no framework.
USUAL = ("startup", "lint", "plan", "scripts", "corpus", "peers", "link_rounds")
#: These import torch and start ranks, or need virtual nodes and minutes. Those named `gpu_` need a GPU,
#: `coverage` folders of repositories.
BY_NAME = (
    *("smoke", "smoke_step", "gpu_smoke", "gpu_floors", "gpu_servers", "node_facts", "judge", "report_formats"),
    *("parameter_server", "healthy", "history", "fleet_page", "coverage", "editor"),
)


def main(arguments: list[str]) -> int:
    """Run the named benchmark with its arguments, or the usual ones."""
    # An installed preflight has compiled modules, so they are compiled here first.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    names = arguments[:1] or USUAL
    for name in names:
        if name not in (*USUAL, *BY_NAME):
            print(f"unknown benchmark {name!r}; use one of {', '.join((*USUAL, *BY_NAME))}", file=sys.stderr)
            return 2
        sys.argv = [f"benchmarks/{name}.py", *arguments[1:]]
        code = importlib.import_module(f"benchmarks.{name}").main()
        if code:
            return int(code)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
