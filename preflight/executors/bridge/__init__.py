"""Clusters that are reached through a client library: the library lives in a process of its own, the bridge.

A client library brings threads, signal handlers and waits without end, and may have to run under another Python
than preflight's own (Ray demands the cluster's). In a process beside the head none of that can hold the head up: it
is spoken to in frames, has deadlines, and can be killed. `mux` and the sides run there and keep to Python 3.8 and
the standard library, but for the client library itself; `head` is this end of it.
"""
