"""Holds lint against the validators of the frameworks themselves.

A framework's own start-up checks are run on valid configurations and on changed ones; their verdicts are kept in
`tests/oracle/verdicts/`, and `tests/oracle/` holds lint to them. `docs/oracle.md` has the figures.
"""
