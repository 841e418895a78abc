"""What recovery does at the end of a search: the biases of each pick, corrected for its own mix."""
