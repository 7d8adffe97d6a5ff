if [ "$TWO" = 1 ]; then
    torchrun --nproc_per_node=2 \ 
        train.py
fi
