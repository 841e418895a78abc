"""What an assignment is expected to cost: models of latency and loss, priors, and how good forecasts were."""
