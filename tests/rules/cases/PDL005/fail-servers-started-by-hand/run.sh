#!/bin/bash
TRAINING_ROLE=PSERVER python train.py
