"""Damaged and hostile input for everything that reads what a stranger may have written."""
