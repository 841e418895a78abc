"""`python -m benchmarks.trust`."""

from benchmarks.trust.run import main

main()
