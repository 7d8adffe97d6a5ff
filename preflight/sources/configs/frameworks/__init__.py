"""Configuration files of training frameworks, read by tables: one module of keys for each framework."""
