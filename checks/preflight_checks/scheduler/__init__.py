"""The scheduler's or cluster's resources for the job."""
