"""What runs units: `inline`, `threads` and `processes`, one a file."""
