"""Parameter servers: their placement, and whether their nodes have the resources for them."""
