"""Samplers, which propose the next mix: the guided sampler with its candidates and goals, and samplers by name."""
