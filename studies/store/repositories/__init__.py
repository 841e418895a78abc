"""What the store does, by what it is about: each class writes and reads the rows of one subject."""
