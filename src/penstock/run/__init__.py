"""How a plan runs: scheduling and delivery, the executors, and the pool of worker processes."""
