"""Parameter servers: where they land, and whether their hosts hold them."""
