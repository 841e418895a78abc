"""Output for terminals: tables that fit the width, and the sentences around them."""
