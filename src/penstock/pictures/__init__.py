"""Pictures of elements and of plans, by Matplotlib."""
