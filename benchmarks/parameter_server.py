"""The parameter servers of the reference trainer against plain sockets and against libraries.

`python -m benchmarks parameter_server [transfer|steps|servers|paddle] [ROUNDS]`; without a name the first two.
"""

from __future__ import annotations

import importlib
import sys

PARTS = {
    "transfer": "push and pull against raw sockets",
    "steps": "steps a second against pyzmq, torch RPC and Ray",
    "servers": "steps a second over 1 to 4 servers",
    "paddle": "steps a second of the sparse model against Paddle's own servers",
}
_USUAL = ("transfer", "steps")


def main() -> int:
    """Run the named parts, or the usual ones."""
    words = sys.argv[1:]
    names = [word for word in words if word in PARTS] or list(_USUAL)
    unknown = [word for word in words if word not in PARTS and not word.isdecimal()]
    if unknown:
        print(f"unknown part {unknown[0]!r}; use one of {', '.join(PARTS)}", file=sys.stderr)
        return 2
    rounds = [word for word in words if word.isdecimal()]
    for name in names:
        sys.argv = [f"benchmarks/ps_{name}.py", *rounds]
        code = importlib.import_module(f"benchmarks.ps_{name}").main()
        if code:
            return int(code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
