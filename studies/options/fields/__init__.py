"""The fields of `SearchConfig` by group: each is one option, with its row of the option table."""
