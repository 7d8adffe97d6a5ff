"""What training scripts do."""
