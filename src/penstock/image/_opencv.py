"""OpenCV, or what to do where it is missing.

OpenCV's own threads are turned off when `penstock.image` is first imported: their number is a setting of the whole
process. A loader has as many workers as there are cores, each of which makes calls of some tens of microseconds, and
between calls OpenCV's threads spin. Measured on two cores: distorting characters of 64x64 took 105 us of processor time
an image without them, 160 to 190 us with them, and two workers were slower than one.

Who has set their number before, by `cv2.setNumThreads` or `OPENCV_FOR_THREADS_NUM`, keeps it; who wants them for work
of their own calls `cv2.setNumThreads` afterwards.
"""

import os

from penstock.base._errors import PenstockError


class OpenCVMissingError(PenstockError, ImportError):
    """OpenCV cannot be imported."""


try:
    import cv2 as cv2
except ImportError as error:
    raise OpenCVMissingError(
        f"penstock.image works on OpenCV, which cannot be imported ({error}): pip install 'penstock[image]'. "
        "Where opencv-python or opencv-contrib-python is installed already, that will do too."
    ) from error

if "OPENCV_FOR_THREADS_NUM" not in os.environ and cv2.getNumThreads() == cv2.getNumberOfCPUs():
    cv2.setNumThreads(1)
