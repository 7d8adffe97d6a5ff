torchrun --standalone --nproc_per_node=2 $PROGRAM configs/yolo.yml
