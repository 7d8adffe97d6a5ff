"""Compares two reports: findings, undecided checks, nodes, versions, and measurements."""
