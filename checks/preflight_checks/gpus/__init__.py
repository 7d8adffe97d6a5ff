"""GPUs: their number, health, settings, and other users."""
