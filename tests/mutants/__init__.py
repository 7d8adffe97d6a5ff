"""Mutants of the reference trainer: small faults of one function, each of which a smoke run must find."""
