"""Holds the mixes of a study that was renewed on fresh data against the same mixes before."""
