"""The frameworks whose validators are asked; each module has one, as `FRAMEWORK`."""

from __future__ import annotations

import importlib
import pkgutil

from tools.oracle.frameworks.base import Framework


def names() -> tuple[str, ...]:
    """The names of all of them."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name != "base"))


def find(name: str) -> Framework:
    """The framework of a name; raises ModuleNotFoundError for another name."""
    found = importlib.import_module(f"{__name__}.{name}").FRAMEWORK
    if not isinstance(found, Framework):
        raise TypeError(f"{name} holds no framework")
    return found
