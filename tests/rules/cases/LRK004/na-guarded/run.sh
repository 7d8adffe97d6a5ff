#!/bin/bash
python fit.py
