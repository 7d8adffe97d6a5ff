"""Training scripts in Python, read from their syntax trees."""

from preflight.sources.python.python_source import PythonSource

__all__ = ["PythonSource"]
