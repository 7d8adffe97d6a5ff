"""Helm charts: their templates evaluated with their values, as by `helm template`, without running anything.

`templates` parses a template and evaluates it, `functions` holds the functions that it may call, `chart` finds the
chart that a file belongs to, and merges its values.
"""
