"""Arrays with named axes: selection, averages, reproducible files, xarray and pandas."""

import io
import sys
import zipfile

import numpy as np
import pytest

from jlibo import Labelled, files
from jlibo.sweeps import Variable, named_file

equal = np.testing.assert_array_equal


def make():
    rng = np.random.default_rng(0)
    return Labelled(
        {
            "regret": Variable(("lam", "seed", "step"), rng.random((2, 3, 4), np.float32)),
            "support": Variable(("lam", "seed", "group"), rng.random((2, 3, 5)) > 0.5),
            "count": Variable(("seed", "lam"), np.arange(6).reshape(3, 2)),
            "scalar": Variable((), np.asarray(2.5)),
        },
        {
            "lam": Variable(("lam",), np.asarray([0.1, 0.5])),
            "omega": Variable(("lam",), np.asarray([7.0, 7.0])),
            "seed": Variable(("seed",), np.asarray([4, 5, 6])),
            "group": Variable(("group",), np.asarray(list("abcde"))),
        },
        {"note": "kept", "list": [1, 2]},
    )


def test_arrays_axes_and_coordinates_by_name():
    result = make()
    assert result.names == ("regret", "support", "count", "scalar")
    assert result.sizes == {"lam": 2, "seed": 3, "step": 4, "group": 5}
    assert result.dims("count") == ("seed", "lam")
    assert "regret" in result and "lam" not in result
    equal(result.coord("seed"), [4, 5, 6])
    equal(result.coord("step"), range(4))
    assert "regret   [lam, seed, step]  float32" in repr(result)
    with pytest.raises(KeyError, match="no array 'regre'"):
        result["regre"]
    with pytest.raises(ValueError, match="`name` should be one of"):
        result.coord("regret")


def test_sel_by_value_and_isel_by_index():
    result = make()
    one = result.sel(lam=0.5, seed=6)
    assert one.dims("regret") == ("step",) and one["count"].shape == ()
    equal(one["regret"], result["regret"][1, 2])
    assert "lam" not in one.coords and "group" in one.coords
    # A value rounded to float32 is found; a list keeps the axis, in the order of the list.
    some = result.sel(lam=np.float32(0.1), seed=[6, 4])
    equal(some["regret"], result["regret"][0][[2, 0]])
    equal(some["count"], result["count"][[2, 0], 0])
    equal(some.coord("seed"), [6, 4])
    equal(result.sel(group="c")["support"], result["support"][..., 2])
    # A coordinate of another name selects all entries with the value.
    equal(result.sel(omega=7.0)["regret"], result["regret"])
    equal(result.sel(omega=7.0, lam=0.1)["regret"], result["regret"][0])
    equal(result.isel(step=slice(1, 3))["regret"], result["regret"][..., 1:3])
    equal(result.isel(seed=-1)["count"], result["count"][-1])
    with pytest.raises(ValueError, match=r"lam among \[0.1, 0.5\]"):
        result.sel(lam=0.2)
    with pytest.raises(ValueError, match="`isel` should be axes among"):
        result.isel(lambda_=0)


def test_mean_and_standard_error():
    result = make()
    mean, error = result.mean_and_error("regret")
    wide = result["regret"].astype(np.float64)
    equal(mean, wide.mean(1))
    np.testing.assert_allclose(error, wide.std(1, ddof=1) / np.sqrt(3))
    equal(result.isel(seed=[0]).mean_and_error("regret")[1], np.zeros((2, 4)))
    with pytest.raises(ValueError, match="`over` should be one of the axes"):
        result.mean_and_error("regret", over="group")


@pytest.mark.parametrize(
    ("arrays", "coords", "message"),
    [
        ({"a": (("x",), np.zeros((2, 2)))}, {}, "one name for each of the 2 axes of array a"),
        ({"a": (("x", "x"), np.zeros((2, 2)))}, {}, "different names"),
        ({"a": (("x",), np.zeros(2)), "b": (("x",), np.zeros(3))}, {}, "'x' is 2 long in array a, but got 3"),
        ({"a": (("x",), np.zeros(2))}, {"x": (("x",), np.zeros(3))}, "but got 3 in coordinate x"),
        ({}, {"x": (("x", "y"), np.zeros((2, 2)))}, "coordinates with one axis"),
    ],
)
def test_inconsistent_names_or_sizes_raise(arrays, coords, message):
    make_all = lambda group: {name: Variable(*parts) for name, parts in group.items()}  # noqa: E731
    with pytest.raises(ValueError, match=message):
        Labelled(make_all(arrays), make_all(coords))


def test_save_and_load_round_trip_and_equal_bytes_for_equal_content(tmp_path):
    result = make()
    path = result.save(tmp_path / "result.npz")
    loaded = Labelled.load(path)
    assert loaded.names == result.names and loaded.attrs == result.attrs
    for kind in ("arrays", "coords"):
        for name, (dims, values) in getattr(result, kind).items():
            other = getattr(loaded, kind)[name]
            assert other.dims == dims and other.values.dtype == values.dtype
            equal(other.values, values)
    make().save(tmp_path / "again.npz")
    assert (tmp_path / "again.npz").read_bytes() == path.read_bytes()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["again.npz", "result.npz"]
    # NumPy alone can read it, without pickle.
    with np.load(path, allow_pickle=False) as archive:
        equal(archive["array/regret"], result["regret"])


def test_bad_files_raise(tmp_path):
    path = make().save(tmp_path / "result.npz")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(named_file.NamedFileError, match="not a saved result: it cannot be read"):
        Labelled.load(path)
    np.savez(path, a=np.zeros(3))
    with pytest.raises(named_file.NamedFileError, match="it has no header"):
        Labelled.load(path)
    files.write_atomically(
        path,
        lambda file: named_file.write_arrays(file, {"format": "jlibo-labelled", "format_version": 99}, {}),
    )
    with pytest.raises(named_file.NamedFileError, match="format 'jlibo-labelled' 99"):
        Labelled.load(path)
    with pytest.raises(ValueError, match="cannot store 'a' of dtype object"):
        named_file.to_bytes({}, {"a": np.asarray([{}], object)})


def test_failed_write_keeps_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def fail_half_way(file):
        file.write(b"ne")
        raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="disk full"):
        files.write_atomically(path, fail_half_way)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_ctrl_c_during_a_write_raises_keyboard_interrupt(monkeypatch):
    """Closing a `zipfile` in the middle of a member raises another error, which must not replace it."""
    begin, opened = zipfile.ZipFile.open, []

    def pressed(self, *args, **options):
        opened.append(begin(self, *args, **options))
        raise KeyboardInterrupt

    monkeypatch.setattr(zipfile.ZipFile, "open", pressed)
    with pytest.raises(KeyboardInterrupt):
        named_file.write_arrays(io.BytesIO(), {}, {"a": np.arange(1000.0)})


def test_archive_members_have_a_fixed_time(tmp_path):
    with zipfile.ZipFile(make().save(tmp_path / "result.npz")) as archive:
        assert {member.date_time for member in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_to_xarray():
    pytest.importorskip("xarray")
    result = make()
    dataset = result.to_xarray()
    equal(dataset["regret"].sel(lam=0.5, seed=6), result["regret"][1, 2])
    assert dataset["count"].dims == ("seed", "lam") and dataset.attrs["note"] == "kept"
    assert set(dataset.coords) == {"lam", "omega", "seed", "group"}


def test_to_dataframe():
    pytest.importorskip("pandas")
    result = make()
    frame = result.to_dataframe("regret", "count", "scalar")
    assert list(frame.columns) == ["lam", "omega", "seed", "step", "regret", "count", "scalar"]
    assert len(frame) == 24
    row = frame[(frame.lam == 0.5) & (frame.seed == 6) & (frame.step == 3)].iloc[0]
    assert row.regret == result["regret"][1, 2, 3] and row["count"] == result["count"][2, 1]
    assert set(frame.scalar) == {2.5}
    with pytest.raises(ValueError, match=r"choose some of regret\[lam, seed, step\], support"):
        result.to_dataframe()


def test_missing_packages_are_named_in_the_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "xarray", None)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"pip install 'jlibo\[xarray\]'"):
        make().to_xarray()
    with pytest.raises(ImportError, match=r"pip install 'jlibo\[pandas\]'"):
        make().to_dataframe("regret")
