"""Code that is sent to nodes: frames, the agent, and its children's code. Python 3.8, standard library only."""
