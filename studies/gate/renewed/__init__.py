"""Judging the mixes of a renewed study against the same mixes of the old study."""
