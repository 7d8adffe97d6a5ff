"""Batch sizes, parallel sizes, memory, precision: the arithmetic of a training."""
