"""The short training run over the job's own nodes."""
