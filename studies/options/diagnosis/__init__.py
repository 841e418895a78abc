"""Beyond which numbers a diagnosis speaks: the thresholds of `bitfront sensitivity`, as rows of the option table."""
