"""Parts of the store's transactions. Each takes the connection of a transaction and commits nothing."""
