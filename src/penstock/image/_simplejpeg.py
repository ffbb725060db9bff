"""simplejpeg, or what to do where it is missing.

It is libjpeg-turbo, inside a wheel of 400 kB, and nothing else. See design/0009-decoding.md for why OpenCV, which has
the same library inside, does not decode our JPEGs.
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
