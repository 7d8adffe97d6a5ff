"""Code that runs on the nodes: Python 3.8 syntax, standard library only at import."""
