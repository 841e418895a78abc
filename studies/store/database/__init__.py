"""Below the store: tables, connections, retries, and opening a database in whatever state it is."""
