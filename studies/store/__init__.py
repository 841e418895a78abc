"""The study database: what is written, transaction by transaction. Nothing outside of this package knows SQL."""
