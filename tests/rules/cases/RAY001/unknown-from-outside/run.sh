#!/bin/bash
ray start --head --port=$PORT
