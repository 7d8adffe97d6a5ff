"""Compares lint with the frameworks' own validators.

A framework's own start-up checks are run on valid configurations and on changed ones; their verdicts are kept in
`tests/oracle/verdicts/`, and `tests/oracle/` tests lint against them. `docs/oracle.md` has the figures.
"""
