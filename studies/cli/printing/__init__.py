"""How verbs print: consoles, tables, JSON and CSV, and how a search ended."""
