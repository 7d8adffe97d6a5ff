"""The pipeline smoke run."""
