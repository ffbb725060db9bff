"""What a run says of itself: counters while it runs, and a report for people after it."""
