"""The contenders of `resize.py`, by name."""

from _resize_contenders import OWN_CONTENDERS
from _resize_formats import FORMAT_CONTENDERS
from _resize_torch import TORCH_CONTENDERS

CONTENDERS = {each.name: each for each in (*OWN_CONTENDERS, *TORCH_CONTENDERS, *FORMAT_CONTENDERS)}
