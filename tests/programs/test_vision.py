"""Programs of computer vision, whose images, boxes and points are of many sizes, on ranks."""

import numpy as np
import pytest

import penstock as ps
from penstock import ArraySpec
from tests.programs.ranks import on_ranks, runs

RNG = np.random.default_rng(0)
SIZES = RNG.integers(3, 9, (40, 2))
IMAGES = [RNG.integers(0, 256, (height, width, 3), "uint8") for height, width in SIZES]
BOXES = [RNG.random((count, 4), "float32") for count in RNG.integers(0, 5, 40)]


def detection():
    """Images and boxes as torchvision's detectors take them: lists of images and of targets, flipped at random."""

    def read(i):
        return {"image": IMAGES[i], "boxes": BOXES[i], "labels": np.arange(len(BOXES[i])), "id": i}

    def augment(x, rng):
        flips = rng.random() < 0.5
        image, boxes = x["image"], x["boxes"]
        if flips:
            image, boxes = image[:, ::-1], np.stack([1 - boxes[:, 2], boxes[:, 1], 1 - boxes[:, 0], boxes[:, 3]], 1)
        # Two axes vary, and values lie end to end along one: rows of pixels, with the size beside them.
        return {**x, "image": image.reshape(-1, 3), "size": [*image.shape[:2]], "boxes": boxes, "flips": flips}

    image = {"image": ArraySpec((None, 3), "uint8"), "size": ArraySpec((2,), "int64"), "flips": ArraySpec((), "bool")}
    boxes = {"boxes": ArraySpec((None, 4), "float32"), "labels": ArraySpec((None,), "int64")}
    spec = image | boxes | {"id": ArraySpec((), "int64")}
    images = ps.range(40).shuffle(seed=1).map(read)
    return images.random_map(augment, seed=2, element_spec=spec).ragged_batch(3)


def images_of(batch):
    """The list that a detector takes."""
    return [pixels.reshape(*size, 3) for pixels, size in zip(runs(batch["image"]), batch["size"].tolist(), strict=True)]


def test_detection_takes_images_and_boxes_of_any_number():
    seen = []
    for batch in on_ranks(detection):
        assert batch["boxes"].offsets.tolist() == batch["labels"].offsets.tolist()
        rows = batch["id"].tolist(), images_of(batch), batch["flips"].tolist(), runs(batch["boxes"])
        for number, image, flips, boxes in zip(*rows, strict=True):
            assert (image == (IMAGES[number][:, ::-1] if flips else IMAGES[number])).all()
            corners = BOXES[number][:, [2, 1, 0, 3]] * (-1, 1, -1, 1) + (1, 0, 1, 0) if flips else BOXES[number]
            np.testing.assert_allclose(boxes, corners, rtol=1e-6)
            seen.append(number)
    assert sorted(seen) == list(range(40))


@pytest.mark.framework
def test_detection_in_torch_gets_lists_of_tensors():
    import torch

    ranks = [list(detection().to_torch(shard=(rank, 2), whole_batches=True)) for rank in range(2)]
    assert len(ranks[0]) == len(ranks[1]) == len(detection()) // 2
    seen = []
    for batch in ranks[0] + ranks[1]:
        pixels = batch["image"][0].split(batch["size"].prod(1).tolist())
        targets = batch["boxes"][0].split(batch["boxes"][1].diff().tolist())
        assert len(pixels) == len(targets) == len(batch["id"])
        assert sum(map(torch.Tensor.numel, targets)) == batch["boxes"][0].numel()
        seen += batch["id"].tolist()
    assert len(set(seen)) == len(seen)


LINES = [RNG.integers(1, 256, (4, width), "uint8") for width in RNG.integers(5, 40, 60)]
TEXTS = [RNG.integers(1, 30, len(line[0]) // 4) for line in LINES]


def ocr():
    """Lines of text of one height: batches of similar width, padded, with the sizes that a CTC loss takes."""

    def read(i):
        sizes = {"width": LINES[i].shape[1], "length": len(TEXTS[i])}
        return {"image": LINES[i], "text": TEXTS[i], **sizes, "id": i}

    numbers = dict.fromkeys(("width", "length", "id"), ArraySpec((), "int64"))
    spec = {"image": ArraySpec((4, None), "uint8"), "text": ArraySpec((None,), "int64"), **numbers}
    lines = ps.range(60).map(read, element_spec=spec).shuffle(seed=3)
    padding = {"image": 255, "text": 0, **dict.fromkeys(numbers, 0)}
    widths = [line.shape[1] for line in LINES]
    return lines.bucket_by_length(lengths=widths, max_tokens=160, padding_values=padding)


def test_ocr_takes_lines_of_similar_width():
    seen, used, whole = [], 0, 0
    for batch in on_ranks(ocr):
        whole += batch["image"].size
        for number, image, text, width, length in zip(
            *(batch[name] for name in ("id", "image", "text", "width", "length")), strict=True
        ):
            assert (image[:, :width] == LINES[number]).all()
            assert (image[:, width:] == 255).all()
            assert text[:length].tolist() == TEXTS[number].tolist()
            assert not text[length:].any()
            seen.append(int(number))
            used += LINES[number].size
    assert sorted(seen) == list(range(60))
    assert used > 0.8 * whole


PHOTOS = RNG.integers(0, 256, (6, 4, 5, 3), "uint8")
POSES = RNG.random((6, 3, 4), "float32")


def rays(photo):
    """Origin, direction and colour of the ray through each pixel: `(height * width, 9)`."""
    image, pose = photo
    height, width = image.shape[:2]
    x, y = np.meshgrid(np.arange(width) - width / 2, np.arange(height) - height / 2)
    directions = np.stack([x, -y, -np.ones_like(x)], -1) @ pose[:, :3].T
    origins = np.broadcast_to(pose[:, 3], directions.shape)
    return np.concatenate([origins, directions, image / 255], -1, dtype="float32").reshape(-1, 9)


def nerf():
    """Rays of all photographs in one order, in batches of one size."""
    return ps.from_arrays((PHOTOS, POSES)).map(rays).unbatch().shuffle(seed=4).batch(12)


def test_nerf_takes_rays_of_all_photographs():
    # A share of the rows each, because a batch has 12.
    found = np.concatenate(on_ranks(nerf, whole_batches=False))
    wanted = np.concatenate([rays(photo) for photo in zip(PHOTOS, POSES, strict=True)])
    assert not np.array_equal(found, wanted)
    assert sorted(map(tuple, found.tolist())) == sorted(map(tuple, wanted.tolist()))


CLOUDS = [RNG.random((count, 4), "float32") for count in RNG.integers(5, 60, 24)]
CARS = [RNG.random((count, 7), "float32") for count in RNG.integers(0, 4, 24)]


def point_clouds():
    """Points and boxes as OpenPCDet collates them: the number of the cloud is the first column of its points."""

    def read(i):
        return {"points": CLOUDS[i], "boxes": CARS[i], "frame_id": f"{i:06d}"}

    def turn(x, rng):
        angle, scale = rng.uniform(-0.78, 0.78), rng.uniform(0.95, 1.05)
        turned = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]) * scale
        found = {name: x[name].copy() for name in ("points", "boxes")}
        for each in found.values():
            each[:, :2] = each[:, :2] @ turned.T
        found["boxes"][:, 6] += angle
        return {**x, **found, "scale": scale}

    def collate(batch):
        points, offsets = batch["points"]
        numbers = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        return {**batch, "points": np.column_stack([numbers.astype("float32"), points])}

    spec = {"points": ArraySpec((None, 4), "float32"), "boxes": ArraySpec((None, 7), "float32")}
    spec["frame_id"] = ArraySpec((), "U")
    clouds = ps.range(24).shuffle(seed=5).map(read)
    turned = clouds.random_map(turn, seed=6, element_spec={**spec, "scale": ArraySpec((), "float64")})
    batches = turned.ragged_batch(2)
    return batches.map(collate, element_spec={**batches.element_spec, "points": ArraySpec((None, 5), "float32")})


def test_point_clouds_lie_end_to_end_with_their_numbers():
    seen = []
    for batch in on_ranks(point_clouds):
        for row, (frame, scale) in enumerate(zip(batch["frame_id"].tolist(), batch["scale"], strict=True)):
            points, number = batch["points"][batch["points"][:, 0] == row, 1:], int(frame)
            radius = np.linalg.norm(CLOUDS[number][:, :2], axis=1)
            np.testing.assert_allclose(np.linalg.norm(points[:, :2], axis=1), scale * radius, rtol=1e-4)
            assert (points[:, 2:] == CLOUDS[number][:, 2:]).all()
            assert (runs(batch["boxes"])[row][:, 2:6] == CARS[number][:, 2:6]).all()
            seen.append(number)
    assert sorted(seen) == list(range(24))
