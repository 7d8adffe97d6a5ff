"""`python -m benchmarks` measures what any machine can; `python -m benchmarks NAME [...]` one thing alone."""

from __future__ import annotations

import importlib
import os
import sys

#: Quick, and without a framework.
USUAL = ("startup", "lint", "scripts", "corpus", "peers", "link_rounds")
#: These import torch and start ranks, or need virtual nodes and minutes; `gpu_smoke` needs a GPU.
BY_NAME = ("smoke", "smoke_step", "gpu_smoke", "node_facts", "judging", "rendering", "parameter_server", "healthy")


def main(arguments: list[str]) -> int:
    """Run the benchmarks named, or the usual ones; what follows a name is its own."""
    # What is measured is installed, so its modules lie there compiled.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    names = arguments[:1] or USUAL
    for name in names:
        if name not in (*USUAL, *BY_NAME):
            print(f"there is no benchmark {name!r}; known are {', '.join((*USUAL, *BY_NAME))}", file=sys.stderr)
            return 2
        sys.argv = [f"benchmarks/{name}.py", *arguments[1:]]
        code = importlib.import_module(f"benchmarks.{name}").main()
        if code:
            return int(code)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
