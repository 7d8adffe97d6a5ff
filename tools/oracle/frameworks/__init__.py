"""The frameworks whose validators are asked: each module has one, as `FRAMEWORK`; a YAML file may be one by itself."""

from __future__ import annotations

import importlib
import pkgutil

from tools.oracle.frameworks.base import SEEDS, Framework, described


def names() -> tuple[str, ...]:
    modules = {module.name for module in pkgutil.iter_modules(__path__)} - {"base"}
    return tuple(sorted(modules | {path.stem for path in SEEDS.glob("*.yaml")}))


def find(name: str) -> Framework:
    """Return the framework with this name. Raises FileNotFoundError for an unknown name."""
    if not any(module.name == name for module in pkgutil.iter_modules(__path__)):
        return described(name)
    found = importlib.import_module(f"{__name__}.{name}").FRAMEWORK
    if not isinstance(found, Framework):
        raise TypeError(f"{name} contains no framework")
    return found
