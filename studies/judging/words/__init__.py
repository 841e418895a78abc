"""What is said of judged evaluations, in sentences: for progress, tables, summaries and reports."""
