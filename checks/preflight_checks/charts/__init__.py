"""Measurements as charts, and as numbers that are kept from run to run: one module for each subject."""
