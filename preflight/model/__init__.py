"""Immutable values that every layer shares: job, requests, facts, recording, findings, configuration, charts."""
