"""Judge what was measured: limits, front, ties, picks, and where a study stands.

Pure functions of stored rows; measures nothing.
"""
