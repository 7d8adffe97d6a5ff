"""Code that is sent to nodes: frames, the agent, and the code that its children need. Python 3.8, standard library
only.
"""
