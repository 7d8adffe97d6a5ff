"""The log of a run (`--debug`, `--log-file`): handlers of the logger `preflight`, and a formatter that hides
secrets.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import logging

#: A command line may contain a whole script; longer messages are cut.
MAX_MESSAGE_LENGTH = 4000
_FILE_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_TERMINAL_FORMAT = "%(name)s: %(message)s"
_handlers: list[logging.Handler] = []
_on_stderr = False


def log_to_stderr() -> None:
    """Write the log to standard error: with rich on a terminal, otherwise as plain lines."""
    global _on_stderr
    import logging
    import sys

    handler: logging.Handler
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.highlighter import NullHighlighter
        from rich.logging import RichHandler

        console = Console(stderr=True)
        handler = RichHandler(console=console, show_path=False, highlighter=NullHighlighter(), keywords=[])
        _add(handler, _TERMINAL_FORMAT)
    else:
        handler = logging.StreamHandler(sys.stderr)
        _add(handler, _FILE_FORMAT)
    _on_stderr = True


def log_to_file(path: Path) -> None:
    """Append the log to a file that only its owner can read if created here. Raises OSError."""
    import logging

    # Not through the handler, which would create it readable by everyone.
    os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600))
    _add(logging.FileHandler(path, encoding="utf-8", errors="backslashreplace"), _FILE_FORMAT)


def is_on_stderr() -> bool:
    """Return whether the log goes to standard error, where it would disturb a display that redraws itself."""
    return _on_stderr


def close_log() -> None:
    """Remove the handlers that were added here, so that each run in a process starts without a log."""
    global _on_stderr
    if _handlers:
        import logging

        for handler in _handlers:
            logging.getLogger("preflight").removeHandler(handler)
            handler.close()
        _handlers.clear()
        logging.getLogger("preflight").setLevel(logging.NOTSET)
    _on_stderr = False


def _add(handler: logging.Handler, form: str) -> None:
    import logging

    from preflight._util.redaction import scrub_traceback
    from preflight._util.sanitize import printable

    class Redacted(logging.Formatter):
        """Formats a record, including its traceback, without secrets and without terminal control characters."""

        def format(self, record: logging.LogRecord) -> str:
            text = scrub_traceback(super().format(record))
            if len(text) > MAX_MESSAGE_LENGTH:
                text = f"{text[:MAX_MESSAGE_LENGTH]}... ({len(text) - MAX_MESSAGE_LENGTH} more characters)"
            return printable(text)

    handler.setFormatter(Redacted(form))
    logger = logging.getLogger("preflight")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    _handlers.append(handler)


def command_text(words: Any) -> str:
    """Quote a command for a shell, for a log message; the formatter hides its secrets."""
    import shlex

    return shlex.join(map(str, words))
