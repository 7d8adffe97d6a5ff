#!/bin/bash
accelerate launch --use_fsdp --fsdp_version 2 --fsdp_state_dict_type LOCAL_STATE_DICT train.py
