"""What a run measures, as numbers that are kept from run to run: one module for each stage."""
