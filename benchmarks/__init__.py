"""Benchmarks: each measures preflight and something comparable in the same run."""
