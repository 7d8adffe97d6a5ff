"""The logs of a run that failed: which rank was first, why, and what would have told before."""
