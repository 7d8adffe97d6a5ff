"""Kubernetes manifests: which objects start ranks, in how many pods and with which resources.

`objects` finds the workloads of a file, `pods` states what their pods request and evaluates the commands
of their containers, `operators` has the variables that each operator sets.
"""
