#!/bin/bash
paddle train --config=c.py --num_passes=3
