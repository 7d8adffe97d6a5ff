"""Slurm, similar schedulers and Ray."""
