"""Preparing a run: checked options, an open study, ranges, and a fixed search space."""
