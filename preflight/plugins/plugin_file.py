"""One Python file with a site's own rules and checks, named by the user: no package, no installation."""

from __future__ import annotations

import hashlib
import importlib.util
import linecache
import re
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from preflight._util import regular_file
from preflight._util.usage_error import UsageError
from preflight.plugins.authoring import Check, Rule
from preflight.plugins.pack import Pack

#: Modules that are made from such files are named with this prefix and the name of the file.
PREFIX = "preflight_own_"
_MAX_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class PluginFile:
    """The content of such a file.

    Args:
        label: changes with the content.
        items: its rules and checks.
        areas, charts: those of its `PACK`, if it has one.
    """

    label: str
    items: tuple[Rule | Check, ...]
    areas: tuple[tuple[str, str], ...]
    charts: tuple[Any, ...]


def read(path: Path) -> PluginFile:
    """Load the file.

    The file is run as a module whose name is derived from its own, so that its probes have the same names on every node
    and in every recording.

    Raises:
        UsageError: it cannot be read or run, or defines no rule, no check and no chart.
    """
    try:
        data = regular_file.read(path, _MAX_BYTES)
    except OSError as error:
        raise UsageError(f"--plugin {path} cannot be read: {error.strerror}") from None
    if path.suffix != ".py":
        raise UsageError(f"--plugin {path}: expected a Python file")
    name = PREFIX + re.sub(r"\W", "_", path.stem)
    other = sys.modules.get(name)
    if other is not None and Path(str(other.__file__)) != path:
        raise UsageError(f"--plugin {path}: {other.__file__} has the same name; rename one of them")
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
    pack = getattr(module, "PACK", Pack())
    if not isinstance(pack, Pack):
        raise UsageError(f"--plugin {path}: PACK is a {type(pack).__name__}; expected a preflight.plugin.Pack")
    if not found and not pack.charts:
        raise UsageError(
            f"--plugin {path} defines no rule and no check; decorate functions with `rule` or `check` of "
            "preflight.plugin"
        )
    areas = tuple((str(area), str(title)) for area, title in pack.areas.items())
    label = f"{path.name} sha256:{hashlib.sha256(data).hexdigest()[:12]}"
    return PluginFile(label, found, areas, pack.charts)


def unload() -> None:
    """Remove the modules that were made from such files."""
    for name in [name for name in sys.modules if name.startswith(PREFIX)]:
        del sys.modules[name]


def _place(path: Path, error: BaseException) -> str:
    """The file and the line that the error comes from."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f"{path}:{error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"{path}:{lines[-1]}" if lines else str(path)
