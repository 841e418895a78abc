"""The processes that work on one study together: signs of life, leases, and tasks that one does for all."""
