"""What holds for every test: Ctrl-C reaches the processes that tests start."""

from __future__ import annotations

import signal

# A shell that starts the tests in its background has them ignore SIGINT, and whatever they start would inherit that.
# With a handler in this process, started programs get the default back.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
