"""Made-up networks whose latencies and losses are no sums, to judge samplers by.

Nothing here imports the sampler's models: what is true of a world is decided without them.
"""
