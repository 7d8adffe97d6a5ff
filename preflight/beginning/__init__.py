"""A first configuration for a folder: what is found there, what is chosen because of it, and the file that says so."""
