"""Files that describe containers: Dockerfiles, and Compose files that start several of them."""
