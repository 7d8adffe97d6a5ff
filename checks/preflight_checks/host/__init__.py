"""What a node gives to the processes of a job: processors, memory, limits, time; and who else is there."""
