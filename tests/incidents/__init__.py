"""Failures that people reported in public, each rebuilt as the smallest job of our own that holds the same fault."""
