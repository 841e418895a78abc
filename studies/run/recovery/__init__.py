"""Recovery at the end of a search: correcting the biases of each pick for its own mix."""
