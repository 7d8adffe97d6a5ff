"""What the scheduler or cluster says it has for the job."""
