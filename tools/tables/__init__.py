"""Generates `preflight/sources/tables/*.json` from the parsers of launchers and frameworks.

`python -m tools.tables` fetches the pinned distributions, reads their parsers by `ast` (nothing of them is installed,
imported or run here) and writes one file for each target in `targets.py`. `python -m tools.tables NAME...` does a
few of them. To add a table, add a `Target`; to add a version, add it to the target.
"""
