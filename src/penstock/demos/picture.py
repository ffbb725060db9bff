"""The demos' pictures: predicted next frames beside the true ones; distorted characters and photographs, and names."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Frames = npt.NDArray[np.floating[Any]]

SHOWN = ("last frame\n(model sees this)", "next frame,\npredicted", "next frame,\nthe truth")
PAIRS_ACROSS = 6
IMAGES_ACROSS = 9
PAIR_TITLES = ("as it is", "distorted")
ERRORS = ("error of the\nprediction", "error of copying\nthe last frame")


def draw(path: Path, last: Frames, true: Frames, predicted: Frames, *, labels: list[str], summary: str) -> None:
    """Saves a PNG with a row for each frame: last, predicted next, true next, and both errors.

    Errors are means over the channels, in absolute value, all on one scale, which a bar shows. Below each is its
    root mean square.

    Args:
        path: Where to; written at once, when all is drawn.
        last: Shape `(rows, height, width, channels)`, values 0 to 1; 1 or 3 channels.
        true: As `last`.
        predicted: As `last`, but may leave 0 to 1.
        labels: One for each row.
        summary: Stands below the heading.
    """
    # No pyplot: it would choose a window system, and keep the figure.
    from matplotlib.figure import Figure

    errors = {3: np.abs(predicted - true), 4: np.abs(last - true)}
    brightest = max(float(np.quantile(errors[4].mean(-1), 0.99)), 1e-6)
    rows, aspect = len(last), float(np.clip(last.shape[1] / last.shape[2], 0.3, 2.0))
    figure = Figure(figsize=(9.0, 1.4 + (0.2 + 1.55 * aspect) * rows), dpi=105, layout="constrained", facecolor="white")
    layout: Any = figure.get_layout_engine()
    layout.set(w_pad=0.03, h_pad=0.03, hspace=0, wspace=0)
    figure.suptitle("penstock demo: the next frame", fontsize=13, fontweight="bold")
    axes = figure.subplots(rows, 5, squeeze=False)
    for row in range(rows):
        for column, frames in enumerate((last, predicted, true)):
            axes[row, column].imshow(_visible(frames[row]), cmap="gray", vmin=0, vmax=1)
        for column, error in errors.items():
            shown = axes[row, column].imshow(error[row].mean(-1), cmap="magma", vmin=0, vmax=brightest)
            axes[row, column].set_xlabel(f"RMS {np.sqrt(np.square(error[row]).mean()):.3f}", fontsize=8.5, labelpad=2)
        axes[row, 0].set_ylabel(labels[row], fontsize=8.5)
    for ax, title in zip(axes[0], SHOWN + ERRORS, strict=True):
        ax.set_title(title, fontsize=9)
    for ax in axes.flat:
        ax.set(xticks=[], yticks=[])
        ax.spines[:].set_visible(False)
    bar = figure.colorbar(shown, ax=axes[:, 3:], shrink=0.5, aspect=36, pad=0.02, extend="max")
    bar.set_label("absolute error, where frames are 0 to 1", fontsize=8.5)
    bar.ax.tick_params(labelsize=8)
    figure.supxlabel(summary, fontsize=9.5, color="0.25")
    _save(figure, path)


def draw_characters(
    path: Path, images: npt.NDArray[np.uint8], *, truth: list[str], predicted: list[str], font: Path, summary: str
) -> None:
    """Saves a PNG of pairs, a character as it is and the same distorted, each above the name that the model gave it.

    Args:
        path: Where to; written at once, when all is drawn.
        images: Shape `(2 * pairs, height, width)`, in turn as they are and distorted; light on black, shown the other
            way round, as on paper.
        truth: The name of each, one character.
        predicted: The name that the model gave to each.
        font: A file of a font that has all of the names.
        summary: Stands below.
    """
    from matplotlib.figure import Figure
    from matplotlib.font_manager import FontProperties

    names = FontProperties(fname=str(font), size=13)
    rows, across = -(-len(images) // (2 * PAIRS_ACROSS)), 3 * PAIRS_ACROSS - 1  # a narrow column between pairs
    figure = Figure(figsize=(9.0, 1.2 + 0.95 * rows), dpi=105, layout="constrained", facecolor="white")
    layout: Any = figure.get_layout_engine()
    layout.set(w_pad=0.02, h_pad=0.03, hspace=0, wspace=0)
    figure.suptitle("penstock demo: characters as they are, and distorted", fontsize=13, fontweight="bold")
    grid = figure.subplots(
        rows, across, squeeze=False, gridspec_kw={"width_ratios": [0.25 if x % 3 == 2 else 1 for x in range(across)]}
    )
    for ax in grid.flat:
        ax.set(xticks=[], yticks=[])
        ax.spines[:].set_visible(False)
    for number, (image, true, named) in enumerate(zip(images, truth, predicted, strict=True)):
        row, place = divmod(number, 2 * PAIRS_ACROSS)
        ax = grid[row, place // 2 * 3 + place % 2]
        ax.imshow(image, cmap="gray_r", vmin=0, vmax=255)
        right = true == named
        ax.spines[:].set(visible=True, color="0.8" if right else "crimson", linewidth=1.0 if right else 1.8)
        label = named if right else f"{named} ({true})"
        ax.set_xlabel(label, fontproperties=names, labelpad=1, color="seagreen" if right else "crimson")
        if row == 0:
            ax.set_title(PAIR_TITLES[place % 2], fontsize=9)
    figure.supxlabel(f"below each: the model's answer; where it is wrong, red, with the truth\n{summary}", fontsize=9.5)
    _save(figure, path)


def draw_photographs(
    path: Path,
    seen: npt.NDArray[np.float32],
    seen_names: list[str],
    images: npt.NDArray[np.float32],
    *,
    truth: list[str],
    predicted: list[str],
    accuracy: list[float],
    validation: list[float],
    resident_nbytes: list[int],
) -> None:
    """Saves a PNG of images as training sees them, of validation's with the model's answers, and of two curves.

    Args:
        path: Where to; written at once, when all is drawn.
        seen: Shape `(n, height, width, 3)`, values 0 to 255.
        seen_names: The class of each.
        images: As `seen`, of validation.
        truth: The class of each.
        predicted: The class that the model gave to each.
        accuracy: After each batch of training.
        validation: After each epoch.
        resident_nbytes: After each batch of training.
    """
    from matplotlib.figure import Figure

    rows = 2 * -(-len(seen) // IMAGES_ACROSS)
    figure = Figure(figsize=(9.0, 3.6 + 1.18 * rows), dpi=105, layout="constrained", facecolor="white")
    figure.suptitle("penstock demo: a folder of photographs", fontsize=13, fontweight="bold")
    parts: Any = figure.subfigures(3, 1, height_ratios=[rows / 2 * 1.18 + 0.3, rows / 2 * 1.18 + 0.3, 2.2])
    above, middle, below = parts
    _name_images(above, "a batch as training sees it: distorted by chance", seen, seen_names, seen_names)
    _name_images(middle, "of validation, with the model's answer (the truth)", images, truth, predicted)
    learnt, memory = below.subplots(1, 2)
    batches = np.arange(1, len(accuracy) + 1)
    learnt.plot(batches, accuracy, color="0.6", label="training, mean of the epoch so far")
    ends = np.linspace(0, len(accuracy), len(validation) + 1)[1:]
    learnt.plot(ends, validation, "o-", color="seagreen", label="validation")
    learnt.set(ylim=(0, 1.02), xlabel="batches", title="accuracy")
    learnt.legend(fontsize=8, loc="lower right", frameon=False)
    memory.plot(batches, np.array(resident_nbytes) / 2**20, color="steelblue")
    memory.set(ylim=(0, 1.25 * max(resident_nbytes) / 2**20), xlabel="batches", title="memory of the process, MiB")
    for ax in (learnt, memory):
        ax.title.set_fontsize(9.5)
        ax.xaxis.label.set_fontsize(8.5)
        ax.tick_params(labelsize=8)
        ax.spines[["top", "right"]].set_visible(False)
    _save(figure, path)


def _name_images(
    part: Any, title: str, images: npt.NDArray[np.float32], truth: list[str], predicted: list[str]
) -> None:
    """Draws images in rows on a part of a figure, each above its name, red and with the truth where it is wrong."""
    part.suptitle(title, fontsize=9.5)
    grid = part.subplots(-(-len(images) // IMAGES_ACROSS), IMAGES_ACROSS, squeeze=False)
    for ax in grid.flat:
        ax.set_axis_off()
    for ax, image, true, named in zip(grid.flat, images, truth, predicted, strict=False):
        ax.imshow(np.clip(image / 255, 0, 1))
        label = named if named == true else f"{named} ({true})"
        ax.set_title(label, fontsize=7, pad=2, color="0.2" if named == true else "crimson")


def _save(figure: Any, path: Path) -> None:
    png = io.BytesIO()
    figure.savefig(png, format="png")
    path.write_bytes(png.getvalue())


def _visible(frame: Frames) -> Frames:
    """The frame as Matplotlib wants it: within 0 to 1, and without an axis for one channel."""
    clipped: Frames = np.clip(frame, 0, 1)
    return clipped[..., 0] if frame.shape[-1] == 1 else clipped
