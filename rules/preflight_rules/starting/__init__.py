"""What is started, how many of it, by which launcher."""
