"""Noise of latencies: the tie band, drift, and measuring doubtful latencies again."""
