"""`python -m preflight`, without the working directory on the import path.

The tree that is linted is often the working directory, and nothing in it may be imported. Python itself looks there
for `preflight` before this line is reached; in a tree you do not trust use the command `preflight`, or `python -P`.
"""

import os
import sys

# Before any further import: each of them would be looked for in the tree first.
if not getattr(sys.flags, "safe_path", False) and sys.path and sys.path[0] in ("", os.getcwd()):  # noqa: PTH109
    del sys.path[0]

from preflight.cli.main import main

# A worker process of the webhook loads the main module again, by another name.
if __name__ == "__main__":
    main()
