ray start --head --port=6379 --block
