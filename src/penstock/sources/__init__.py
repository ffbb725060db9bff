"""Where elements come from: one kind of data a file, its library imported there alone."""
