#!/bin/bash
fleetrun --servers=10.0.0.1:6170,10.0.0.2:6170 --workers=10.0.0.1:6171,10.0.0.2:6171 train.py
