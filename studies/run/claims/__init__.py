"""Evaluations that this worker has begun: where they come from and what becomes of their results."""
