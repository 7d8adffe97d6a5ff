"""Stands in for packages that a framework imports, but that its validator does not use.

Runs in the environment of a framework, so it imports only the standard library.
"""

import importlib.abc
import importlib.machinery
import sys
import types


class _Kind(type):
    """A metaclass whose classes have every attribute and ignore the arguments of calls."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _made(name)

    def __call__(cls, *given, **named):
        # As a decorator it leaves what it decorates.
        return given[0] if len(given) == 1 and callable(given[0]) and not named else _made("Value")

    def __getitem__(cls, item):
        return cls

    def __iter__(cls):
        return iter(())

    def __or__(cls, other):
        return cls

    __ror__ = __or__


def _made(name):
    return _Kind(name, (), {})


class _Module(types.ModuleType):
    """A module in which every name is a class."""

    __path__ = ()
    __version__ = "99.0"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = _made(name)
        setattr(self, name, made)
        return made


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, names):
        self.names = names

    def find_spec(self, name, path=None, target=None):
        if any(name == each or name.startswith(f"{each}.") for each in self.names):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return _Module(spec.name)

    def exec_module(self, module):
        pass


def stand_in(*names):
    """Replace these packages and all of their submodules."""
    sys.meta_path.insert(0, _Finder(names))
