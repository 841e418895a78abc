"""Scripts that are handed over as they are. They run without bitfront, where the other tool is installed."""
