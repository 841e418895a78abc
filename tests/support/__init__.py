"""What tests share: networks, fakes, servers, processes. Benchmarks use some of it too."""
