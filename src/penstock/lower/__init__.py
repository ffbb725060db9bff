"""From a plan to a program: rewrites of the plan, then units of work. No threads and no clock."""
