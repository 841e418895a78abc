"""Options of a search: the option table, configuration files, and quantities with units. Opens nothing."""
