"""Training over parameter servers."""
