"""The frameworks whose validators are asked: each module has one, as `FRAMEWORK`; a YAML file may be one by itself."""

from __future__ import annotations

import importlib
import pkgutil

from tools.oracle.frameworks.base import SEEDS, Framework, described


def names() -> tuple[str, ...]:
    """The names of all of them."""
    modules = {module.name for module in pkgutil.iter_modules(__path__)} - {"base"}
    return tuple(sorted(modules | {path.stem for path in SEEDS.glob("*.yaml")}))


def find(name: str) -> Framework:
    """The framework of a name; raises FileNotFoundError for another name."""
    if not any(module.name == name for module in pkgutil.iter_modules(__path__)):
        return described(name)
    found = importlib.import_module(f"{__name__}.{name}").FRAMEWORK
    if not isinstance(found, Framework):
        raise TypeError(f"{name} holds no framework")
    return found
