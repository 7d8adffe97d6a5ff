"""A Python that has already imported torch, for tests that do not test the start of Python."""

from .stand_in import WarmPython, warm_python

__all__ = ["WarmPython", "warm_python"]
