#!/bin/bash
ray start --head --port=6379
