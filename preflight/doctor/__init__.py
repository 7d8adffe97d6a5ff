"""What this machine can and cannot check: everything looked at side by side, each look with a deadline of its own."""
