"""The operations of the store: each class writes and reads the rows of one subject."""
