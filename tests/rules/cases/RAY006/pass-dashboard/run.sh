#!/bin/bash
ray job submit --address http://head:8265 -- python train.py
