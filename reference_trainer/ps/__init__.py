"""Training over parameter servers: who holds what."""
