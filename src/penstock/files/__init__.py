"""Files by name, here and behind URLs: patterns, ranges, read-ahead, the disk cache, and what is kept of them."""
