"""Judges jobs as they are submitted to Kubernetes: a validating admission webhook, and an AdmissionCheck of Kueue."""
