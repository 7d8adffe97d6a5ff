"""Kubernetes manifests: which objects start ranks, in how many pods, with what.

`kinds` finds the workloads of a file, `pods` states what their pods ask for, `commands` evaluates what their containers
run, `operators` knows what each operator puts into the environment, `annotations` reads suppressions.
"""
