#!/bin/bash
export NCCL_DEBUG=INFO
passed=()
for name in $NAMES; do
    passed+=(--env "$name")
done
docker run --rm \
    "${passed[@]}" \
    --device=/dev/kfd --device=/dev/dri \
    "$IMAGE" /bin/sh -c "torchrun --nproc_per_node=8 train.py"
