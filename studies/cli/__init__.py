"""The command line, one file per family of verbs. Only here is anything printed and the process ended."""
