#!/bin/bash
ARGS=()
if [ "$SLURM_NODEID" = "0" ]; then
  ARGS+=(--head --port=6379)
else
  ARGS+=(--address "$HEAD_IP:6379")
fi
ray start "${ARGS[@]}" --block
