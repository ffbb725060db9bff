"""The error of a demo that cannot run."""

from penstock.base._errors import PenstockError


class DemoError(PenstockError):
    """The demo cannot run here. The message names what is missing, and the remedy."""
