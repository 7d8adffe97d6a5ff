"""Lint held to recorded verdicts of the frameworks' own validators."""
