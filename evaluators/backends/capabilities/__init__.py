"""What the shipped backends run natively, as capabilities files, and backends that offer less by a user's file."""
