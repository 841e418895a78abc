"""The base of the store: tables, connections, retries, and opening a database."""
