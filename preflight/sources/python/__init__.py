"""Training scripts in Python, read by their syntax tree."""

from preflight.sources.python.source import PythonSource

__all__ = ["PythonSource"]
