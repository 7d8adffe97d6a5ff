"""Connections between nodes: reachability and quality."""
