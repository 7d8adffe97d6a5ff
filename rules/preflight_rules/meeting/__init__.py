"""Where ranks meet, and over which network."""
