"""NVIDIA GPUs below any backend: which one is meant, what it computes natively, what state it is in."""
