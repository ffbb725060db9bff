"""How long tests wait, at most, on a machine whose processors other programs have. What comes ends the wait at once."""

DEADLINE_S = 120.0
"""For an event that comes at once, such as the end of a thread."""
PROGRAM_S = 240.0
"""For a program to do all that it does and to end. A test that takes longer hangs: see `faulthandler_timeout`."""
