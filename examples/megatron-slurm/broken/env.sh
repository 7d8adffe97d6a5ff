# What every rank of the job sees.
export NCCL_SOCKET_IFNAME=lo
export NCCL_DEBUG=WARN
export NCCL_IB_TIMEOUTT=22
export CUDA_DEVICE_MAX_CONNECTIONS=1
export OMP_NUM_THREADS=8
