"""The status of a study: its workers, its speed, failures, and where the time went."""
