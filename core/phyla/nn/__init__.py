"""Shared building blocks, so that a family file reads like its paper.

All of them hold arrays, so they are imported from their own modules, on the thread that runs the model.
"""
