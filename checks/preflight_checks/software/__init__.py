"""Drivers, frameworks and libraries: whether they fit each other, the GPUs and the other nodes."""
