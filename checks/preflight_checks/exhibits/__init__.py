"""What was measured, for the eye: one module for each subject, beside the checks that judge it."""
