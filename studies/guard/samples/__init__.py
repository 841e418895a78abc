"""Samples of the requests: those that are compared beside them, and those that are kept as fresh data."""
