"""What recovery costs before a search begins."""
