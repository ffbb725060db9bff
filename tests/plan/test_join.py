"""`join` adds values of another dataset with the same key; `group_by` makes one element of those with one label."""

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.files import _keptvalues
from penstock.testing import assert_same
from penstock.verbs import _labels

USERS = {"id": np.array([9, 7, 1]), "age": np.array([30, 40, 50], np.int16)}
VISITS = {"user": np.array([7, 9, 7, 5], np.uint64), "page": np.arange(8).reshape(4, 2)}


def users() -> ps.Dataset:
    return ps.from_arrays(USERS)


def visits() -> ps.Dataset:
    return ps.from_arrays(VISITS)


ON = {"user": "id"}


def test_a_key_that_is_missing_is_an_error_that_names_it() -> None:
    message = "join(on={'user': 'id'}): element 3 has the key 5, which no element of the other dataset has"
    with pytest.raises(ps.ArgumentError, match=re.escape(message)):
        visits().join(users(), ON)


def test_an_inner_join_leaves_out_what_has_no_partner() -> None:
    joined = visits().join(users(), ON, how="inner")
    assert [(int(x["user"]), int(x["age"])) for x in joined] == [(7, 40), (9, 30), (7, 40)]
    assert (len(joined), joined.access) == (3, "random")


@pytest.mark.parametrize(("fill", "age"), [(-1, -1), ({"age": 5}, 5), ({}, 0)])
def test_a_fill_stands_where_the_key_is_missing(fill: Any, age: int) -> None:
    joined = visits().join(users(), ON, fill=fill)
    assert [int(x["age"]) for x in joined] == [40, 30, 40, age]
    assert joined.element_spec["age"] == ps.ArraySpec((), "int16")
    with joined.shuffle(1).batch(3).loader("threads") as loader:
        assert sorted(np.concatenate([batch["age"] for batch in loader]).tolist()) == sorted([40, 30, 40, age])


def test_text_and_rows_of_any_size_are_empty_where_the_key_is_missing() -> None:
    named = users().map(lambda x: {**x, "name": f"n{x['age']}", "rows": np.ones(int(x["id"]))})
    named = ps.zip({"id": users().select("id").map(lambda x: x["id"]), "of": named.map(lambda x: (x["name"], 1))})
    assert visits().join(named, ON, fill=0)[3]["of"] == ("", 0)
    with pytest.raises(ps.ArgumentError, match=r"join\(fill=...\): 'age' is \(\) int16, which cannot hold 70000"):
        visits().join(users(), ON, fill=70_000)
    with pytest.raises(ps.ArgumentError, match=r"the other dataset has no 'agee'; it has \['age'\]"):
        visits().join(users(), ON, fill={"agee": 1})


def test_a_group_is_joined_by_its_key_and_is_empty_where_there_is_none() -> None:
    joined = users().rename({"id": "user"}).join(visits().group_by("user"), "user", fill=0)
    assert [x["page"].tolist() for x in joined] == [[[2, 3]], [[0, 1], [4, 5]], []]
    assert joined[2]["page"].shape == (0, 2)


@pytest.mark.parametrize("dtypes", [("int64", "uint64"), ("U3", "U9"), ("S3", "S9"), ("bool", "bool")])
def test_keys_of_one_kind_are_the_same_whatever_their_width(dtypes: tuple[str, str]) -> None:
    keys = np.array([1, 0])
    left, right = (
        ps.from_arrays({"k": keys.astype(dtype), name: keys}) for dtype, name in zip(dtypes, "xy", strict=True)
    )
    assert [int(x["y"]) for x in left.join(right, "k")] == [1, 0]


def test_large_integers_stay_apart() -> None:
    left = ps.from_arrays({"k": np.array([2**53 + 1, 2**53]), "x": np.arange(2)})
    right = ps.from_arrays({"k": np.array([2**53, 2**53 + 1], np.uint64), "y": np.arange(2)})
    assert [int(x["y"]) for x in left.join(right, "k")] == [1, 0]


def test_several_values_make_a_key() -> None:
    left = ps.from_arrays({"a": np.array([0, 0, 1, 1]), "b": np.array(list("xyxy")), "n": np.arange(4)})
    right = ps.from_arrays({"b": np.array(list("xyxy")), "a": np.array([1, 1, 0, 0]), "m": np.arange(4) * 10})
    assert [int(x["m"]) for x in left.join(right, ["a", "b"])] == [20, 30, 0, 10]
    with pytest.raises(ps.ArgumentError, match=r"element 0 has the key \(0, 'x'\), which no element"):
        left.join(right.take(2), ["a", "b"])


REFUSED: dict[str, tuple[Any, str]] = {
    "a key that comes twice": (
        lambda: users().join(visits(), {"id": "user"}),
        "elements 0 and 2 of the other dataset have the same key, 7",
    ),
    "keys of unlike kinds": (
        lambda: visits().join(users().map(lambda x: {**x, "id": str(x["id"])}), ON),
        "keys are integers here and text in the other dataset",
    ),
    "keys that are floats": (lambda: visits().cast({"user": "float64", "page": "int64"}).join(users(), ON), "keys are"),
    "a name that both have": (
        lambda: visits().join(users().rename({"age": "page"}), ON),
        "both have 'page'. Rename one",
    ),
    "no such name": (lambda: visits().join(users(), "id"), "elements have no 'id'; they have ['user', 'page']"),
    "no such name there": (lambda: visits().join(users(), "user"), "the others have no 'user'"),
    "nothing but the key": (lambda: visits().join(users().select("id"), ON), "nothing but the key"),
    "elements that are no dicts": (lambda: visits().join(ps.range(3), ON), "the others are () int64. Make dicts"),
    "another how": (lambda: visits().join(users(), ON, how="outer"), "join(how='outer'): it is 'left' or 'inner'"),
    "a fill that nothing needs": (lambda: visits().join(users(), ON, how="inner", fill=0), "an inner join leaves out"),
    "an order that changes": (lambda: visits().shuffle(1).join(users(), ON), "shuffle(seed=1) before it changes"),
    "an order that changes there": (lambda: visits().join(users().shuffle(1), ON), "of the other dataset reads"),
    "an endless one": (lambda: visits().repeat().join(users(), ON), "join() needs a known number of elements"),
    "a key twice in on": (lambda: visits().join(users(), {"user": "id", "page": "id"}), "the other dataset twice"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "said"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_joined_is_refused_with_the_reason(make: Any, said: str) -> None:
    with pytest.raises(ps.ArgumentError, match=re.escape(said)):
        make()


@pytest.mark.parametrize("on", [3, [], ["user", 1], None])
def test_on_is_a_name_or_several(on: Any) -> None:
    with pytest.raises(ps.ArgumentTypeError, match=r"join\(on="):
        visits().join(users(), on)


def test_streams_and_other_objects_are_no_partners() -> None:
    with pytest.raises(ps.ArgumentTypeError, match=r"join\(\) needs random access"):
        visits().join(users().filter(lambda x: True), ON)
    with pytest.raises(ps.ArgumentTypeError, match=r"join\(\) takes another dataset, got a dict"):
        visits().join({9: 1}, ON)  # type: ignore[arg-type]


def test_a_join_may_be_split_where_partners_are_shared() -> None:
    train, test = visits().join(users(), ON, how="inner").split(2, 1)
    assert (int(train[0]["age"]), int(test[0]["age"])) == (40, 40)


def test_values_of_blanks_by_name_stay_with_their_leaves() -> None:
    other = ps.from_arrays({"id": np.array([1]), "y": np.array([5]), "z": np.array([6])})
    joined = ps.from_arrays({"id": np.array([1, 2])}).join(other, "id", fill={"y": -1, "z": -2})
    assert [int(each["new"]) for each in joined.select("y").rename({"y": "new"})] == [5, -1]
    assert [int(each["z"]) for each in joined.select("z")] == [6, -2]


def test_groups_come_by_their_first_elements() -> None:
    (seven, nine, five) = visits().group_by("user")
    assert_same(seven, {"user": np.uint64(7), "page": np.array([[0, 1], [4, 5]])})
    assert_same(nine, {"user": np.uint64(9), "page": np.array([[2, 3]])})
    assert_same(five, {"user": np.uint64(5), "page": np.array([[6, 7]])})


@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_groups_are_padded_into_batches(executor: Any) -> None:
    grouped = visits().group_by("user").shuffle(2).padded_batch(3)
    with grouped.loader(executor) as loader:
        (batch,) = loader
    order = batch["user"].tolist()
    want = {7: [[0, 1], [4, 5]], 9: [[2, 3], [0, 0]], 5: [[6, 7], [0, 0]]}
    assert batch["page"].tolist() == [want[user] for user in order]


def test_groups_by_labels_keep_all_leaves_together() -> None:
    grouped = ps.range(5).group_by([1, 0, 1, 1, 0])
    assert [group.tolist() for group in grouped] == [[0, 2, 3], [1, 4]]
    assert ps.range(4).group_by([0, 0, 1, 1]).element_spec == ps.ArraySpec((2,), "int64")
    assert len(ps.range(0).group_by([])) == 0
    assert [x["k"] for x in ps.from_arrays({"k": np.array([3, 3])}).group_by("k")] == [3]


@pytest.mark.parametrize(
    "change",
    [lambda ds: ds, lambda ds: ds.select("user", "page"), lambda ds: ds[::-1]],
    ids=["groups", "select", "slice"],
)
def test_who_has_no_group_has_an_empty_one_also_where_all_groups_have_one_size(change: Any) -> None:
    groups = ps.from_arrays({"user": np.array([7, 9, 7, 9]), "page": np.arange(4)}).group_by("user")
    joined = ps.from_arrays({"user": np.array([9, 5])}).join(change(groups), "user", fill=0)
    assert [each["page"].tolist() for each in joined] == [[1, 3], []]
    assert groups.element_spec["page"].shape == (2,)
    assert joined.padded_batch(2)[0]["page"].tolist() == [[1, 3], [0, 0]]


def test_groups_of_elements_of_any_size_are_refused() -> None:
    ragged = ps.range(3).map(np.arange, element_spec=ps.ArraySpec((None,), "int64"))
    with pytest.raises(ps.SpecError, match=r"group_by\(...\)"):
        ragged.group_by([0, 0, 1]).element_spec  # noqa: B018
    with pytest.raises(ps.ArgumentError, match=r"group_by\('k'\) reads the labels of epoch 0, and shuffle"):
        ps.from_arrays({"k": np.arange(3)}).shuffle(1).group_by("k")
    with pytest.raises(ps.ArgumentTypeError, match=r"group_by\(\) needs random access"):
        ps.range(3).filter(lambda x: True).group_by([0, 0, 1])


def test_an_index_that_has_an_element_twice_does_not_take_each_once() -> None:
    assert ps.range(3)[[2, 0, 1]]._node.takes_each_once
    assert not ps.range(3)[[0, 0, 1]]._node.takes_each_once


def test_values_that_are_filled_and_then_not_selected_are_not_asked_for():
    here = ps.from_arrays({"k": np.array([1, 2, 3])})
    there = ps.from_arrays({"k": np.array([1, 3]), "x": np.array([10, 30]), "y": np.array([7, 8])})
    ds = here.join(there, on="k", fill={"x": -1, "y": -2}).select("x")
    for executor in ("inline", "threads"):
        with ds.batch(3).loader(executor=executor) as loader:
            assert [batch["x"].tolist() for batch in loader] == [[10, -1, 30]]


@pytest.fixture
def pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two files of ten lines each; values of so few are kept here, too."""
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(_keptvalues, "_LEAST_KEPT", 10)
    for file in range(2):
        lines = [json.dumps({"id": f"p{file}{n}", "size": n}) for n in range(10)]
        (tmp_path / f"{file}.jsonl").write_text("\n".join(lines))
    return tmp_path


def read_count(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of the datasets whose keys are read from now on."""
    found, read = [], _labels._all_of

    def counted(node: Any) -> Any:
        found.append(node.length)
        return read(node)

    monkeypatch.setattr(_labels, "_all_of", counted)
    return found


def sizes(folder: Path) -> list[int]:
    wanted = ps.from_arrays({"id": np.array(["p13", "p00"])})
    return [int(x["size"]) for x in wanted.join(ps.from_jsonl(str(folder / "*.jsonl")), "id")]


class _Backwards:
    """Makes other keys, on threads."""

    releases_gil = True

    def __call__(self, x: Any) -> Any:
        return {**x, "id": x["id"][::-1]}


def test_keys_of_files_are_read_once_and_kept_beside_them(pages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sizes(pages) == [3, 0]
    (index,) = pages.glob(".*.keys")
    read = read_count(monkeypatch)
    assert (sizes(pages), read) == ([3, 0], [2])  # those of the arrays
    other = ps.from_jsonl(str(pages / "*.jsonl"))
    moved = other.shuffle(1, reshuffle=False).skip(1)[::2].select("id")
    assert _labels.labels_of(moved._node, "x", "id").tolist() == [x["id"] for x in moved]
    assert read == [2]
    index.write_bytes(index.read_bytes()[:-1] + b"?")
    assert (sizes(pages), read) == ([3, 0], [2, 2, 20])  # a damaged one is made again


def test_kept_keys_belong_to_the_state_of_all_files(pages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sizes(pages) == [3, 0]
    (pages / "1.jsonl").write_text(json.dumps({"id": "p13", "size": 77}))
    assert sizes(pages) == [77, 0]
    assert len(list(pages.glob(".*.keys"))) == 1  # in place of the older
    read = read_count(monkeypatch)
    mapped = ps.from_jsonl(str(pages / "*.jsonl")).map(_Backwards())
    assert ps.from_arrays({"id": np.array(["31p"])}).join(mapped, "id")[0]["size"] == 77
    assert read == [1, 11]  # what a function makes is not kept


def test_kept_keys_are_not_of_a_file_that_had_the_same_size_and_time(pages: Path) -> None:
    def write(names: str) -> None:
        lines = [json.dumps({"id": f"p1{name}", "size": n}) + " " * 40_000 for n, name in enumerate(names)]
        (pages / "1.jsonl").write_text("\n".join(lines))
        os.utime(pages / "1.jsonl", (1, 1))

    write("0123456789")
    assert sizes(pages) == [3, 0]
    write("0132456789")  # differs where a mark of the content does not look
    assert sizes(pages) == [2, 0]


def test_kept_keys_are_private_where_one_of_the_files_is(pages: Path) -> None:
    for file, mode in (("0.jsonl", 0o644), ("1.jsonl", 0o600)):
        os.chmod(pages / file, mode)
    os.chmod(pages, 0o755)
    assert sizes(pages) == [3, 0]
    (index,) = pages.glob(".*.keys")
    assert index.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("kind", [str, str.encode], ids=["text", "bytes"])
def test_long_keys_take_a_bounded_width_and_stay_apart(kind: Any) -> None:
    keys = [kind(each) for each in ("a" * 100_000 + "x", "a" * 100_000 + "y", "b", "a" * 80, "a" * 81)]
    other = ps.from_source(keys, element_spec=ps.ArraySpec((), "U" if kind is str else "S"))
    left, other = ps.zip({"k": other[::-1]}), ps.zip({"k": other, "n": ps.range(5)})
    labels = _labels.labels_of(other._node, "join(on=...)", "k")
    assert labels.nbytes <= 5 * 4 * 128
    assert [int(x["n"]) for x in left.join(other, "k")] == [4, 3, 2, 1, 0]
    in_memory = ps.from_arrays({"k": np.array(keys)})
    assert [int(x["n"]) for x in in_memory.join(other, "k")] == [0, 1, 2, 3, 4]


def test_elements_are_found_by_their_keys_in_the_order_of_these() -> None:
    found = users().positions_of([[1, 9], [9, 7]], on="id")
    assert (found.tolist(), found.dtype) == ([[2, 0], [0, 1]], np.int64)
    assert [int(x["age"]) for x in users()[found.ravel()].batch(1).unbatch()] == [50, 30, 30, 40]
    assert int(users()[users().positions_of(7, on="id")]["age"]) == 40
    assert users().positions_of(np.array([], np.int64), on="id").shape == (0,)
    assert users().positions_of([[]], on="id").shape == (1, 0)
    pairs = ps.from_arrays((np.array(["a" * 200, "b"]), np.arange(2)))
    assert pairs.positions_of(["b", "a" * 200], on=0).tolist() == [1, 0]
    groups = visits().group_by("user")
    assert groups[groups.positions_of(np.uint64(7), on="user")]["page"].tolist() == [[0, 1], [4, 5]]


def test_keys_of_files_are_found_by_what_is_kept(pages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = ps.from_jsonl(str(pages / "*.jsonl"))
    assert ds.positions_of("p13", on="id") == 13
    read = read_count(monkeypatch)
    assert (sizes(pages), ds.positions_of(["p02"], on="id").tolist(), read) == ([3, 0], [2], [2])


NOT_FOUND: dict[str, tuple[Any, str]] = {
    "a missing number": (
        lambda: users().positions_of([7, 8, 4], on="id"),
        "no element has the key 8; 2 of the 3 keys are missing. There is 9, 7, 1.",
    ),
    "a missing text": (
        lambda: ps.from_arrays({"k": np.array(["anna", "bert"])}).positions_of("ana", on="k"),
        "no element has the key 'ana'. There is 'anna'.",
    ),
    "twice": (lambda: visits().positions_of(np.uint64(7), on="user"), "0 and 2 of this dataset have the same key, 7"),
    "no key": (lambda: users().positions_of([None, 7], on="id"), "text or bytes, and these are object and integers"),
    "another kind": (lambda: users().positions_of("7", on="id"), "keys are text here and integers in this dataset"),
    "no such leaf": (lambda: users().positions_of(7, on="ID"), "positions_of(on='ID'): elements have no such leaf"),
    "a shuffle": (lambda: users().shuffle(1).positions_of(7, on="id"), "shuffle(seed=1) before it changes the order"),
    "endless": (lambda: users().repeat().positions_of(7, on="id"), "positions_of() needs a known number of elements"),
}  # fmt: skip


@pytest.mark.parametrize(("ask", "said"), NOT_FOUND.values(), ids=NOT_FOUND)
def test_a_key_that_is_not_found_is_an_error_that_names_keys_like_it(ask: Any, said: str) -> None:
    with pytest.raises(ps.ArgumentError, match=re.escape(said)):
        ask()
