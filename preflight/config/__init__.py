"""Resolves the configuration file and command-line choices into one `Configuration`; handles the baseline."""
