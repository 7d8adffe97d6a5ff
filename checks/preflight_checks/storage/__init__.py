"""Data, checkpoints and their file systems."""
