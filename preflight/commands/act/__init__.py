"""What follows from a run for the scheduler: nodes are taken out of service, and given back."""
