"""The study database, written in transactions. Nothing outside this package knows SQL."""
