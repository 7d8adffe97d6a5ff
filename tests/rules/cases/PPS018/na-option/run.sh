#!/bin/bash
fleetrun --servers=10.0.0.1 --workers=10.0.0.2 train.py
