ray start --address=10.0.0.1:6380 --block
