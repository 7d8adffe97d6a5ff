"""Writes a first configuration for a folder: what is found there, the settings chosen because of it, and the file's
text.
"""
