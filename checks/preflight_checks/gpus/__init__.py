"""GPUs: how many, how they are, how they are set, and who else uses them."""
