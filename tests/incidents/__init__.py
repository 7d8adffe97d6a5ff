"""Failures that people reported in public, each reproduced by a minimal job with the same fault."""
