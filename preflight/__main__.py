"""`python -m preflight`, without the working directory on the import path.

The tree that is linted is often the working directory, and nothing in it may be imported.
"""

from __future__ import annotations

import sys
from pathlib import Path

if sys.path and sys.path[0] in ("", str(Path.cwd())):
    del sys.path[0]

from preflight.cli import main

main()
