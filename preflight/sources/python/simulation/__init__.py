"""Evaluates a program without running it: the calls of each rank, their order, and where the rank stops.

`interpreter` follows Python's statements with known or unknown values, `known_functions` has the results of functions
of Python and of the frameworks, `ranks` evaluates the program of a launch for a few ranks and compares the runs. A
value may also be one that each rank has of its own (`OWN`, `OF_RANK`), or one that they have agreed on (`AGREED`):
`divergence` finds the collectives that depend on the former.
"""
