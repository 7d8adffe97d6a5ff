"""Probes for tests of the agent, sent to it as extra modules."""

from pathlib import Path

#: Modules with their sources, in the form that `open_fleet` takes.
SHIPPED = (("shipped.probes", Path(__file__).with_name("probes.py").read_text(encoding="utf-8")),)
