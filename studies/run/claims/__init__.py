"""Claims: evaluations that this worker has begun, their sources and their results."""
