# What every rank of the job sees.
export NCCL_SOCKET_IFNAME=eth0
export NCCL_DEBUG=WARN
export CUDA_DEVICE_MAX_CONNECTIONS=1
export OMP_NUM_THREADS=8
