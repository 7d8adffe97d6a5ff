export FI_PROVIDER=efa
export NCCL_TOPO_FILE=/opt/microsoft/ndv4-topo.xml
torchrun --nnodes=2 --nproc_per_node=8 --master_addr=node0 train.py
