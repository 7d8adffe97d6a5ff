#!/bin/bash
ray job submit --address ray://head:10001 -- python train.py
