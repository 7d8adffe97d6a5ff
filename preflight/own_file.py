"""One Python file with rules and checks of a site's own, named by the user: no package, nothing installed."""

from __future__ import annotations

import hashlib
import importlib.util
import linecache
import re
import sys
import traceback
from pathlib import Path
from typing import Any

from preflight.errors import UsageError
from preflight.judgement import Check, Rule
from preflight.lazy.dataclasses import dataclass

#: Modules made of such files are called so, and then as the file is.
PREFIX = "preflight_own_"
_LARGEST_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Own:
    """What such a file holds: a label that changes with its content, rules and checks, `AREAS`, and `EXHIBITS`."""

    label: str
    items: tuple[Rule | Check, ...]
    areas: tuple[tuple[str, str], ...]
    exhibits: tuple[Any, ...]


def read(path: Path) -> Own:
    """What a file holds.

    The file is run as a module whose name follows from its own, so that its probes are called the same on every node
    and in every recording.

    Raises:
        UsageError: it cannot be read or run, or defines no rule, no check and no exhibit.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"--plugin {path} cannot be read: {error.strerror}") from None
    if path.suffix != ".py" or len(data) > _LARGEST_BYTES:
        raise UsageError(f"--plugin {path}: a Python file of at most {_LARGEST_BYTES} bytes is expected")
    name = PREFIX + re.sub(r"\W", "_", path.stem)
    other = sys.modules.get(name)
    if other is not None and Path(str(other.__file__)) != path:
        raise UsageError(f"--plugin {path}: {other.__file__} is called the same; rename one of them")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    linecache.checkcache(str(path))
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise UsageError(f"--plugin {_place(path, error)}: {type(error).__name__}: {error}") from None
    found = tuple(dict.fromkeys(item for item in vars(module).values() if isinstance(item, Rule | Check)))
    exhibits = getattr(module, "EXHIBITS", ())
    if not found and not exhibits:
        raise UsageError(
            f"--plugin {path} defines no rule and no check; `@rule(...)` and `@check(...)` of preflight.judgement make "
            "them"
        )
    said = getattr(module, "AREAS", {})
    areas = tuple((str(area), str(title)) for area, title in said.items()) if isinstance(said, dict) else ()
    shown = tuple(exhibits) if isinstance(exhibits, tuple | list) else (exhibits,)
    return Own(f"{path.name} sha256:{hashlib.sha256(data).hexdigest()[:12]}", found, areas, shown)


def forget() -> None:
    """Let the modules go that were made of such files."""
    for name in [name for name in sys.modules if name.startswith(PREFIX)]:
        del sys.modules[name]


def _place(path: Path, error: BaseException) -> str:
    """The file and the line of it that the error comes from."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f"{path}:{error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"{path}:{lines[-1]}" if lines else str(path)
