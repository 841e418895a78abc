"""How a study is getting on: who works on it, how fast, what failed, and where the time went."""
