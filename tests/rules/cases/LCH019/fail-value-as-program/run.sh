accelerate launch --num_processes 2 --fsdp_transformer_layer_cls_to_wrap LayerA LayerB train.py
