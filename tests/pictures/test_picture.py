"""The picture of a report: its boxes, their texts and their places."""

import itertools
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.base._units import size_text
from penstock.pictures._picture import MARGIN, MOST_INPUTS, WIDTH, Box, draw, lay_out, root_of
from penstock.report._lanes import Lane, PlanStep, StepTime

# Not of all tests: Matplotlib keeps fonts open.
leaves_nothing = pytest.mark.usefixtures("leaves_nothing_behind")

DATA = PlanStep("from_npy(a.npy)", (2,), (), "160 elements", 1024)
MAP = PlanStep("map(decode)", (1,), (DATA,), "160 elements", 2048)
BATCH = PlanStep("batch(16)", (0,), (MAP,), "10 elements", 32768)
STEPS = (StepTime("map(decode)", 1, 160, 0.6, 2048), StepTime("from_npy(a.npy)", 2, 160, 0.2, 1024))
LANE = Lane("batch(16)", 2, False, 10, 1.0, 0.5, STEPS, "process")


def report(plan: PlanStep | None = BATCH, *lanes: Lane, wait_s: float = 0.75, use_s: float = 0.25) -> ps.Report:
    """A report of eleven batches."""
    return ps.Report(
        batches=11,
        elements_per_batch=16,
        elapsed_s=wait_s + use_s,
        wait_s=wait_s,
        first_batch_s=0.1,
        copied=0,
        executor="processes",
        workers=2,
        projected_nbytes=200 << 20,
        slot_count=6,
        slot_nbytes=30 << 20,
        shared_nbytes=0,
        note="",
        memory_limit=1024 << 20,
        cpu_count=8,
        lanes=lanes or (LANE,),
        plan=plan,
        peak_nbytes=256 << 20,
        overhead_nbytes=100 << 20,
    )


def texts(said: ps.Report) -> list[list[str]]:
    return [box.texts for box in root_of(said._drawn).walk()]


def order(said: ps.Report) -> list[str]:
    """The titles of all boxes, inputs first."""
    return [title for title, *_ in texts(said)]


# Texts.


def test_each_step_has_a_box_with_its_measurements() -> None:
    said = report()
    assert texts(said) == [
        ["from_npy(a.npy)", "160 elements begun, 160 KiB", "1.2 ms an element, 20% of the work"],
        ["map(decode)", "160 elements begun, 320 KiB", "3.8 ms an element, 60% of the work"],
        ["batch(16)", "10 elements, 32 KiB each"],
        [
            "2 processes",
            "into batches: 1.2 ms an element, 20% of the work",
            "25% computing, 25% waiting at work, 50% idle",
        ],
        ["your program", "25.0 ms a batch, 160 elements/s", "waits 75% of the time for data"],
    ]
    boxes = list(root_of(said._drawn).walk())
    assert [box.share for box in boxes] == [*map(pytest.approx, (0.1, 0.3)), None, pytest.approx(0.1), None]
    assert [boxes.index(each) for box in boxes for each in box.inputs] == [0, 1, 2, 3]
    assert [box.is_limit for box in boxes] == [False, True, False, False, False]


def test_unknown_bytes_are_left_out() -> None:
    ragged = replace(LANE, steps=(replace(STEPS[0], element_nbytes=None),))
    found = texts(report(replace(BATCH, element_nbytes=None), ragged))
    assert found[0] == ["from_npy(a.npy)", "160 elements, 1 KiB each"]  # not measured: what the plan knows
    assert found[1][1] == "160 elements begun"
    assert found[2] == ["batch(16)", "10 elements"]


@pytest.mark.parametrize(
    ("lane", "use_s", "box"),
    [
        (LANE, 0.99, "your program"),
        (replace(LANE, steps=()), 0.25, "2 processes"),
        (replace(LANE, reach="thread", workers=1, is_serial=True), 0.25, "one thread"),
        (LANE, 0.25, "map(decode)"),
    ],
)
def test_one_box_is_the_limit_and_says_so(lane: Lane, use_s: float, box: str) -> None:
    said = report(BATCH, lane, wait_s=1 - use_s, use_s=use_s)
    assert [each.texts[0] for each in root_of(said._drawn).walk() if each.is_limit] == [box]


def test_shares_of_workers_time_are_computed_from_the_time_of_a_batch() -> None:
    shares = LANE.shares(0.1)
    assert shares is not None
    assert (shares.computing, shares.waiting, shares.idle) == pytest.approx((0.25, 0.25, 0.5))
    assert LANE.shares(0.01).idle == 0  # type: ignore[union-attr]  # never less
    assert replace(LANE, reach=None).shares(0.1) is None
    assert replace(LANE, batches=0).shares(0.1) is None


def test_many_inputs_are_folded() -> None:
    inputs = tuple(PlanStep("range(30)", (2 + number,), (), "30 elements", 8) for number in range(9))
    said = report(PlanStep("concatenate()", (0,), inputs, "270 elements", 8))
    assert order(said)[: MOST_INPUTS + 1] == ["range(30)"] * (MOST_INPUTS - 1) + [
        "and 6 more inputs",
        "concatenate()",
    ]


@pytest.mark.parametrize(("slowest", "box"), [(2, "range(30)"), (8, "and 6 more inputs"), (10, "and 6 more inputs")])
def test_the_limit_is_marked_also_where_it_is_folded(slowest: int, box: str) -> None:
    inputs = tuple(PlanStep("range(30)", (2 + number,), (), "30 elements", 8) for number in range(9))
    plan = PlanStep("concatenate()", (0,), inputs, "270 elements", 8)
    steps = tuple(
        StepTime("range(30)", each.numbers[0], 30, 0.6 if slowest in each.numbers else 0.01, 8) for each in inputs
    )
    said = report(plan, replace(LANE, steps=steps))
    assert [each.texts[0] for each in root_of(said._drawn).walk() if each.is_limit] == [box]


def test_a_report_of_no_batch_is_the_plan() -> None:
    fresh = replace(report(), batches=0, lanes=(), peak_nbytes=0)
    assert order(fresh) == ["from_npy(a.npy)", "map(decode)", "batch(16)", "your program"]
    assert texts(fresh)[-1][-1] == "no batch was handed out yet"


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (200 << 20, "200 MiB"), (3 << 40, "3 TiB")],
)
def test_sizes_have_few_digits(nbytes: int, text: str) -> None:
    assert size_text(nbytes).replace(",", "") == text


# Plans that ran.


def plus(x: Any) -> Any:
    return x + 1


def a_function_of_pairs_with_a_name_that_is_longer_than_two_lines_of_a_box_can_ever_hold_broken_or_not(
    x: Any,
) -> Any:
    return x


def is_odd(x: Any) -> Any:
    return x % 2 == 1


def numbers() -> Iterator[int]:
    yield from range(120)


def part(index: int, count: int) -> Iterator[int]:
    yield from range(index, 120, count)


SCALAR = ps.ArraySpec((), "int64")

PLANS: dict[str, Callable[[], ps.Dataset]] = {
    "short": lambda: ps.range(120).map(plus).batch(8),
    "long": lambda: (
        ps.zip(
            (
                ps.range(200).shuffle(seed=1).map(plus).take(180).cast("float32"),
                ps.from_arrays(np.zeros((200, 3))).skip(20).repeat(2).take(180),
            )
        )
        .map(a_function_of_pairs_with_a_name_that_is_longer_than_two_lines_of_a_box_can_ever_hold_broken_or_not)
        .shuffle(seed=2)
        .batch(8)
        .take(20)
    ),
    "serial": lambda: ps.from_generator(numbers, element_spec=SCALAR).batch(8),
    "cut in two": lambda: (
        ps.zip((ps.range(120).filter(is_odd), ps.from_generator(numbers, element_spec=SCALAR).map(plus).take(60)))
        .shuffle(window=16)
        .map(lambda pair: pair[0])
        .batch(8)
    ),
    "shards": lambda: ps.from_generator(part, shards=5, element_spec=SCALAR).map(plus).batch(8),
    "many": lambda: ps.concatenate([ps.range(9) for _ in range(9)]).batch(3),
    "characters": lambda: ps.zip({"画像": ps.range(60), "$x^2$": ps.range(60)}).map(lambda x: x["画像"]),
}


def run(name: str, **options: Any) -> ps.Report:
    with PLANS[name]().loader("threads", workers=2, **options) as loader:
        list(loader)
        return loader.report()


@pytest.mark.framework
@pytest.mark.parametrize("name", PLANS)
def test_no_box_overlaps_another_and_each_stands_below_its_inputs(name: str) -> None:
    pytest.importorskip("matplotlib")
    said = run(name)
    root = root_of(said._drawn)
    _, width, height = lay_out(said.sentence, root)
    boxes = list(root.walk())
    for one, other in itertools.combinations(boxes, 2):
        assert not overlap(one, other)
    for box in boxes:
        assert MARGIN - 1e-9 < box.x < box.x + WIDTH < width - MARGIN + 1e-9
        assert MARGIN <= box.y < box.y + box.height <= height - MARGIN + 1e-9
        assert all(each.y + each.height < box.y for each in box.inputs)
        assert ("this is the limit" in box.lines) == box.is_limit
    assert sum(box.is_limit for box in boxes) == (not said.is_idle)


def overlap(one: Box, other: Box) -> bool:
    across = one.x < other.x + WIDTH and other.x < one.x + WIDTH
    return across and one.y < other.y + other.height and other.y < one.y + one.height


@leaves_nothing
def test_workers_stand_below_the_steps_that_they_run() -> None:
    assert order(run("short")) == ["range(120)", "map(plus)", "batch(8)", "2 threads", "your program"]
    assert order(run("serial")) == ["from_generator(numbers)", "batch(8)", "one thread", "your program"]
    assert order(run("cut in two")) == [
        *("range(120)", "filter(is_odd)", "2 threads"),
        *("from_generator(numbers)", "one thread", "map(plus)", "take(60)", "2 threads"),
        *("zip", "shuffle(seed=0, window=16)", "one thread"),
        *("map(<lambda>)", "batch(8)", "2 threads", "your program"),
    ]


@leaves_nothing
def test_shards_are_one_box_and_so_are_their_readers() -> None:
    found = texts(run("shards"))
    assert found[0][:2] == ["from_generator(part)", "5 of these, side by side"]
    assert found[1][0] == "5 threads"
    assert found[2][0] == "from_generator(part), shards=5"


@leaves_nothing
@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_steps_of_which_a_user_knows_nothing_are_not_shown(on_error: str) -> None:
    found = order(run("short", on_error=on_error))
    left_out = ["(leaves out what failed)"] if on_error == "skip" else []
    assert [each for each in found if "thread" not in each] == [
        *("range(120)", "map(plus)"),
        *left_out,
        *("batch(8)", "your program"),
    ]


@leaves_nothing
def test_a_stream_that_waits_for_workers_is_not_the_limit() -> None:
    def slowly(x: Any) -> Any:
        time.sleep(0.1)  # so long that a busy machine is no matter
        return x

    with ps.range(8).map(slowly).filter(lambda _: True).batch(2).loader("threads", workers=1, prefetch=1) as loader:
        assert sum(map(len, loader)) == 8
        said = loader.report()
    assert said.slowest is not None
    assert said.slowest[1] is not None
    assert said.slowest[1].step == "map(slowly)"
    assert said.slowest[0].wall_s >= 8 * 0.1
    feed = next(lane for lane in said.lanes if lane.is_serial)
    assert feed.wall_s < 7 * 0.1, "the feed is charged with the work of workers, or with its wait"


@leaves_nothing
def test_the_table_has_bytes_and_shares_of_workers_time() -> None:
    table = str(run("short")).splitlines()
    found = re.match(r"  range\(120\) +(\d+) elements begun +(\S+ \S+) +\S+ \S+ each ", table[4])
    assert found is not None
    assert found[2] == size_text(8 * int(found[1]))
    assert table[7].startswith("  2 threads: ")
    assert table[7].endswith("% idle")


# Files.


@pytest.mark.parametrize("name", ["a.jpg", "a", "png", "a.png.gz"])
def test_other_formats_are_refused(name: str) -> None:
    with pytest.raises(
        ps.ArgumentError, match=r"report\(\)\.save\('.*'\): the picture is a PNG or an SVG, so its name"
    ):
        report().save(name)


def test_without_matplotlib_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"save\(\) needs matplotlib: pip install matplotlib\."):
        report().save(tmp_path / "a.png")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.framework
@pytest.mark.parametrize("name", PLANS)
def test_no_text_leaves_its_box_or_the_page(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    said = run(name, memory_limit=1 << 30)
    said.save(tmp_path / "a.png")
    said.save(str(tmp_path / "a.SVG"))
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert b"</svg>" in (tmp_path / "a.SVG").read_bytes()

    root = root_of(said._drawn)
    figure = draw(said.sentence, root)
    (axes,) = figure.axes
    boxes = list(root.walk())
    assert len(axes.patches) == len(boxes)
    rooms = [patch.get_window_extent() for patch in axes.patches]
    for one, other in itertools.combinations(rooms, 2):
        assert not one.overlaps(other)
    title, *inside = (text for text in axes.texts if text.get_text())
    assert [text.get_text() for text in inside] == ["\n".join(box.lines) for box in boxes]
    for text, room in zip([each.get_window_extent() for each in inside], rooms, strict=True):
        assert room.x0 < text.x0 < text.x1 < room.x1
        assert room.y0 < text.y0 < text.y1 < room.y1
    page, text = figure.bbox, title.get_window_extent()
    assert page.x0 < text.x0 < text.x1 < page.x1
    assert page.y0 < text.y0 < text.y1 < page.y1
    shortened = [line for box in boxes for line in box.lines if "…" in line]
    assert len(shortened) == (name == "long"), shortened


@pytest.mark.framework
def test_pyplot_is_not_imported_and_no_setting_of_the_user_moves_it(fresh_python: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = fresh_python(
        "import sys, penstock as ps\n"
        "with ps.range(9).batch(3).loader('inline') as loader:\n"
        "    list(loader)\n"
        f"    loader.report().save({str(tmp_path / 'a.png')!r})\n"
        "print('matplotlib.pyplot' in sys.modules)",
        env={"MPLBACKEND": "tkagg", "DISPLAY": ""},
    )
    assert (done.stdout, done.stderr) == ("False\n", "")
