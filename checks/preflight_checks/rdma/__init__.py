"""RDMA devices, and what GPUs and processes need to use them."""
