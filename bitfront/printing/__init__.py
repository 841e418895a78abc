"""Printing: consoles, tables, JSON and CSV, and the summary of a search."""
