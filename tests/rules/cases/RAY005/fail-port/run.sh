#!/bin/bash
ray start --address=h1:6379 --port=6379
