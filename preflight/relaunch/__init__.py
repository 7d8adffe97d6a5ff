"""The job's own launch line with the reference trainer in place of the user's program; everything else is kept."""
