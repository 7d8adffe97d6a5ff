#!/bin/bash
ray start --num-gpus=8
