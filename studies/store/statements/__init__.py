"""Pieces of the store's transactions: each takes the connection of a transaction and commits nothing."""
