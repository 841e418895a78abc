"""Scripts that are handed over unchanged. They run without bitfront, where the other tool is installed."""
