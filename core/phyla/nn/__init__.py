"""Shared building blocks, so that a family file reads like its paper."""
