"""Progress of a run while it runs."""
