"""Clusters that are reached through a client library, which runs in a separate process: the bridge.

A client library brings threads, signal handlers and endless waits, and may need a Python other than preflight's own
(Ray requires the cluster's). In a separate process these cannot block the head: calls have deadlines, and the process
can be killed. `mux` and the `*_side` modules run there and use Python 3.8, the standard library and the client library;
`head` is the head's end.
"""
