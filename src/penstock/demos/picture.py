"""The demo's picture: predicted next frames beside the true ones, and the errors of both."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Frames = npt.NDArray[np.floating[Any]]

TITLES = (
    "last frame\n(model sees this)",
    "next frame,\npredicted",
    "next frame,\nthe truth",
    "error of the\nprediction",
    "error of copying\nthe last frame",
)


def draw(path: Path, last: Frames, true: Frames, predicted: Frames, *, labels: list[str], summary: str) -> None:
    """Saves a PNG with a row for each frame: last, predicted next, true next, and both errors.

    Errors are means over the channels, in absolute value, on one scale. Below each is its root mean square.

    Args:
        path: Written when the whole picture is drawn.
        last: Shape `(rows, height, width, channels)`, values 0 to 1, 1 or 3 channels.
        true: As `last`.
        predicted: As `last`, but may leave 0 to 1.
        labels: One for each row.
        summary: Stands below the frames.
    """
    # Pyplot would choose a window system, and keep the figure.
    from matplotlib.figure import Figure

    errors = {3: np.abs(predicted - true), 4: np.abs(last - true)}
    brightest = max(float(np.quantile(errors[4].mean(-1), 0.99)), 1e-6)
    rows, aspect = len(last), float(np.clip(last.shape[1] / last.shape[2], 0.3, 2.0))
    figure = Figure(figsize=(9.0, 1.4 + (0.2 + 1.55 * aspect) * rows), dpi=105, layout="constrained", facecolor="white")
    figure.suptitle("penstock demo: the next frame", fontsize=13, fontweight="bold")
    axes = figure.subplots(rows, 5, squeeze=False)
    for row in range(rows):
        for column, frames in enumerate((last, predicted, true)):
            axes[row, column].imshow(np.clip(frames[row], 0, 1), cmap="gray", vmin=0, vmax=1)
        for column, error in errors.items():
            shown = axes[row, column].imshow(error[row].mean(-1), cmap="magma", vmin=0, vmax=brightest)
            axes[row, column].set_xlabel(f"RMS {np.sqrt(np.square(error[row]).mean()):.3f}", fontsize=8.5)
        axes[row, 0].set_ylabel(labels[row], fontsize=8.5)
    for ax, title in zip(axes[0], TITLES, strict=True):
        ax.set_title(title, fontsize=9)
    for ax in axes.flat:
        ax.set(xticks=[], yticks=[])
    bar = figure.colorbar(shown, ax=axes[:, 3:], shrink=0.5, aspect=36, extend="max")
    bar.set_label("absolute error, where frames are 0 to 1", fontsize=8.5)
    figure.supxlabel(summary, fontsize=9.5, color="0.25")
    png = io.BytesIO()
    figure.savefig(png, format="png")
    path.write_bytes(png.getvalue())
