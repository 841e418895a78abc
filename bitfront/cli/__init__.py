"""The command line, one file per family of verbs. Only this package prints and ends the process."""
