"""Measurements as charts: one module for each subject, beside the checks that judge it."""
