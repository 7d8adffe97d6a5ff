"""Runs the job's own launch line with the reference trainer instead of the user's program."""
