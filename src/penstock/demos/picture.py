"""The demo's picture: predicted next frames beside the true ones."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Frames = npt.NDArray[np.floating[Any]]

TITLES = ("last frame\n(what the model sees)", "next frame\n(the truth)", "next frame\n(predicted)")
ERRORS = ("error of\nthe prediction", "error of copying\nthe last frame")


def draw(path: Path, last: Frames, true: Frames, predicted: Frames, titles: tuple[str, str], labels: list[str]) -> None:
    """Saves a PNG with a row for each frame: last, true next, predicted next, and both errors.

    Errors are means over the channels, all on one scale, which a bar shows.

    Args:
        path: Where to; written at once, when all is drawn.
        last: Shape `(rows, height, width, channels)`, values 0 to 1; 1 or 3 channels.
        true: As `last`.
        predicted: As `last`, but may leave 0 to 1.
        titles: A heading, and a line below it.
        labels: One for each row.
    """
    from matplotlib.figure import Figure

    errors = [np.abs(predicted - true).mean(-1), np.abs(last - true).mean(-1)]
    brightest = max(float(np.quantile(errors[1], 0.995)), 1e-9)
    rows, aspect = len(last), last.shape[1] / last.shape[2]
    # No pyplot: it would choose a window system, and keep the figure.
    figure = Figure(figsize=(9.4, 1.35 + 1.66 * aspect * rows), dpi=110, layout="constrained", facecolor="white")
    figure.suptitle(f"{titles[0]}", fontsize=13, fontweight="bold")
    axes = figure.subplots(rows, 5, squeeze=False)
    for row in range(rows):
        for column, frames in enumerate((last, true, predicted)):
            axes[row, column].imshow(np.clip(frames[row], 0, 1).squeeze(), cmap="gray", vmin=0, vmax=1)
        for column, error in enumerate(errors, start=3):
            shown = axes[row, column].imshow(error[row], cmap="magma", vmin=0, vmax=brightest)
            rms = float(np.sqrt(np.mean(np.square((predicted, last)[column - 3][row] - true[row]))))
            axes[row, column].set_xlabel(f"RMS {rms:.3f}", fontsize=8.5, labelpad=2)
        axes[row, 0].set_ylabel(labels[row], fontsize=8.5)
    for ax, title in zip(axes[0], (*TITLES, *ERRORS), strict=True):
        ax.set_title(title, fontsize=9.5)
    for ax in axes.flat:
        ax.set(xticks=[], yticks=[])
        ax.spines[:].set_visible(False)
    bar = figure.colorbar(shown, ax=axes[:, 3:], shrink=0.6, aspect=32, pad=0.02, extend="max")
    bar.set_label("absolute error (0 = black, frames are 0 to 1)", fontsize=8.5)
    bar.ax.tick_params(labelsize=8)
    figure.supxlabel(titles[1], fontsize=9, color="0.3")
    png = io.BytesIO()
    figure.savefig(png, format="png", metadata={"Software": "penstock demo"})
    path.write_bytes(png.getvalue())
