"""What the sensitivity pass finds out with time for few runs."""
