"""Readers of configuration files, host lists, requirements and variables."""
