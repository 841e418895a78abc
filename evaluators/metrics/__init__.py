"""What accurate means: built-in metrics, the user's own, and which one is used when none is named."""
