"""What is shipped to nodes: frames, the agent and what its children need. Python 3.8, standard library only."""
