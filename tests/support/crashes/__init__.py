"""Processes that work on a study, are killed, and what must be left of it."""
