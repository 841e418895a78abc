"""Building and measuring candidates, in one process or in several."""
