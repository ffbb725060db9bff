"""Why a demo cannot run."""

from penstock.base._errors import PenstockError


class DemoError(PenstockError):
    """The demo cannot run here; the message says what is missing, and how to get it."""
