"""OpenCV and simplejpeg, or errors with the remedy if they are missing.

The first import of `penstock.image` turns off OpenCV's own threads. Their number is a setting of the whole process. A
loader has a worker for each core. Each worker makes calls of some tens of microseconds, and OpenCV's threads spin
between calls. Measured on two cores: distorting characters of 64x64 took 105 us of processor time an image without
these threads, and 160 to 190 us with them. Two workers were slower than one.

A number that was set before, by `cv2.setNumThreads` or `OPENCV_FOR_THREADS_NUM`, stays. `cv2.setNumThreads` after the
import turns the threads on again.

simplejpeg is libjpeg-turbo in a wheel of 400 kB. See design/0009-decoding.md for the reason not to use OpenCV, which
has the same library inside.
"""

import os

from penstock.base._arguments import install
from penstock.base._errors import PenstockError


class OpenCVMissingError(PenstockError, ImportError):
    """OpenCV cannot be imported."""


try:
    import cv2 as cv2
except ImportError as error:
    raise OpenCVMissingError(
        f"penstock.image works on OpenCV, which cannot be imported ({error}): {install('opencv-python-headless')}. "
        "An installed opencv-python or opencv-contrib-python works too."
    ) from error

if "OPENCV_FOR_THREADS_NUM" not in os.environ and cv2.getNumThreads() == cv2.getNumberOfCPUs():
    cv2.setNumThreads(1)


class SimpleJPEGMissingError(PenstockError, ImportError):
    """simplejpeg cannot be imported."""


try:
    import simplejpeg as simplejpeg
except ImportError as error:
    raise SimpleJPEGMissingError(
        f"penstock.image decodes JPEG with simplejpeg, which cannot be imported ({error}): {install('simplejpeg')}."
    ) from error
