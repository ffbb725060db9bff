"""Films: frames by index, and episodes of robots."""
