"""One module per engine that can run candidates; `base` holds what they share."""
