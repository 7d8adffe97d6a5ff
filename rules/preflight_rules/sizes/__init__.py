"""Batch sizes, parallel sizes, memory and precision of a training run."""
