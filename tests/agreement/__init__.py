"""Plans of generated jobs, compared with the processes that real launchers start."""
