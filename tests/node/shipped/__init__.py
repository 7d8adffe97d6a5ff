"""Probes to try an agent with, shipped beside our own modules."""

from pathlib import Path

#: As `open_fleet` takes them: modules with their sources.
SHIPPED = (("shipped.probes", Path(__file__).with_name("probes.py").read_text(encoding="utf-8")),)
