#!/bin/bash
ray start --head --port=$PORT
ssh w1 ray start --address=h1:6380
