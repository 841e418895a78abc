"""What one search was asked to do: options, configuration file, quantities with their units. Opens nothing."""
