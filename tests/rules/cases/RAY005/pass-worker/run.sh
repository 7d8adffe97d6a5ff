#!/bin/bash
ray start --address=h1:6379 --num-gpus=8
