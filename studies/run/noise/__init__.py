"""How far latencies of one assignment differ: the tie band, drift, and doubtful latencies measured again."""
