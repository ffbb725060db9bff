"""What the workers of an executor share with the process that iterates the loader."""

from typing import Literal

Reach = Literal["thread", "process", "machine"]
"""- `"thread"`: objects, memory and the GIL. Nothing is pickled, and a result carries no rows.
- `"process"`: memory, the ring among it. The program is pickled, workers may crash, and a result carries only objects.
- `"machine"`: nothing. As `"process"`, and a result carries all rows.
"""
