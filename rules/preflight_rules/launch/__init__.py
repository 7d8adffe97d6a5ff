"""Launch lines: launchers, their options, and the number of processes."""
