"""Helm charts: their templates evaluated with their values, as by `helm template`, without running anything.

`go_template` parses a template, `functions` holds the functions that it may call, `rendering` evaluates it, `values`
merges the chart's values, `chart` finds the chart that a file belongs to.
"""
