"""Kubernetes and containers."""
