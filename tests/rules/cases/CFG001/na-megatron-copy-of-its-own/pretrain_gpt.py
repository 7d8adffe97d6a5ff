import megatron
