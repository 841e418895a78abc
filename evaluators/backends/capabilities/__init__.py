"""Capabilities files of the shipped backends, and backends that a user's capabilities file restricts."""
