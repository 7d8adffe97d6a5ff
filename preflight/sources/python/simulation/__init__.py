"""Runs a program on paper: what each rank calls, in which order, and where it stops.

`interpreter` follows Python's statements with values that are known or not, `known_functions` knows what the functions
of Python and of the frameworks return, `ranks` runs the program of a launch for a few ranks and compares the runs.
A value may also be one that each rank has of its own (`OWN`, `OF_RANK`), or one that they have agreed on (`AGREED`):
`divergence` finds the collectives that depend on the former.
"""
