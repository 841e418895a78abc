"""Findings beside the front: the resolution of the samples, sensitive groups, other optimization levels."""
