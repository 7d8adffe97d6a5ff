"""Shipped to agents under test, as a plugin's probes are."""
