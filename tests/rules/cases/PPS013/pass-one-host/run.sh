#!/bin/bash
fleetrun --servers=127.0.0.1:6170 --workers=127.0.0.1:6171,127.0.0.1:6172 train.py
