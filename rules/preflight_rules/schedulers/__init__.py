"""Slurm and its relatives, Ray; what becomes of a job of which a part fails."""
