"""What a framework takes for its data: one framework a file, imported there alone."""
