"""Measurements as charts, and as numbers that are kept from run to run, with one module per subject."""
