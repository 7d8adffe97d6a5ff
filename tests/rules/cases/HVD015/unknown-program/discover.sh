#!/bin/bash
echo gpu01:4
echo gpu02:4
