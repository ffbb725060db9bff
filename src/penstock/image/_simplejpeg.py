"""simplejpeg, or an error with the remedy if it is missing.

It is libjpeg-turbo in a wheel of 400 kB. See design/0009-decoding.md for the reason not to use OpenCV, which has the
same library inside.
"""

from penstock.base._errors import PenstockError


class SimpleJPEGMissingError(PenstockError, ImportError):
    """simplejpeg cannot be imported."""


try:
    import simplejpeg as simplejpeg
except ImportError as error:
    raise SimpleJPEGMissingError(
        f"penstock.image decodes JPEG with simplejpeg, which cannot be imported ({error}): "
        "pip install 'penstock[image]'."
    ) from error
