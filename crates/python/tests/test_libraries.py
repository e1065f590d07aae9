"""What people use: each of these libraries writes and reads real data by its URL, or through the file system."""

import os

import fsspec
import numpy as np
import pytest

pandas = pytest.importorskip("pandas")


@pytest.fixture
def table():
    numbers = np.random.default_rng(7)
    return pandas.DataFrame(
        {
            "key": [f"k{number % 97}" for number in range(20_000)],
            "value": numbers.normal(size=20_000),
            "count": numbers.integers(0, 1000, size=20_000),
        }
    )


def test_pandas_writes_and_reads_csv_and_parquet(url, table):
    table.to_csv(f"{url}/table.csv", index=False)
    assert pandas.read_csv(f"{url}/table.csv").equals(table)
    table.to_parquet(f"{url}/table.parquet", row_group_size=1000)
    assert pandas.read_parquet(f"{url}/table.parquet", columns=["key", "count"]).equals(table[["key", "count"]])
    table.to_csv(f"{url}/table.csv.gz", index=False)
    assert pandas.read_csv(f"{url}/table.csv.gz").equals(table)
    table.to_json(f"{url}/table.json", orient="records", lines=True)
    assert len(pandas.read_json(f"{url}/table.json", orient="records", lines=True, chunksize=1000).read()) == 20_000


def test_pyarrow_datasets_are_partitioned_and_filtered(url, table):
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.dataset as dataset
    from pyarrow.fs import FSSpecHandler, PyFileSystem

    fs, root = fsspec.core.url_to_fs(url)
    arrow = PyFileSystem(FSSpecHandler(fs))
    whole = pyarrow.Table.from_pandas(table)
    dataset.write_dataset(whole, f"{root}/set", format="parquet", partitioning=["key"], filesystem=arrow)
    assert len(fs.ls(f"{root}/set")) == 97
    found = dataset.dataset(f"{root}/set", format="parquet", partitioning=["key"], filesystem=arrow)
    assert found.count_rows() == 20_000
    one = found.to_table(filter=dataset.field("key") == "k7").to_pandas()
    assert sorted(one["count"]) == sorted(table[table["key"] == "k7"]["count"])


def test_zarr_and_xarray_keep_arrays_in_chunks(url):
    zarr = pytest.importorskip("zarr")
    xarray = pytest.importorskip("xarray")
    data = np.arange(1_000_000, dtype="f4").reshape(1000, 1000)
    array = zarr.create_array(f"{url}/array.zarr", shape=data.shape, chunks=(100, 100), dtype=data.dtype)
    array[:] = data
    again = zarr.open_array(f"{url}/array.zarr", mode="r")
    assert (again[250:260, 990:] == data[250:260, 990:]).all()
    assert (again[:] == data).all()
    given = xarray.Dataset({"t": (("x", "y"), data)}, {"x": np.arange(1000)})
    given.to_zarr(f"{url}/set.zarr", mode="w")
    with xarray.open_zarr(f"{url}/set.zarr") as found:
        assert float(found["t"].sel(x=500).sum()) == float(data[500].sum())


def test_dask_reads_and_writes_in_parallel(url, table):
    frames = pytest.importorskip("dask.dataframe")
    frames.from_pandas(table, npartitions=8).to_parquet(f"{url}/parts")
    found = frames.read_parquet(f"{url}/parts")
    summed = found.groupby("key")["count"].sum().compute(scheduler="threads")
    assert summed.sort_index().tolist() == table.groupby("key")["count"].sum().sort_index().tolist()
    bags = pytest.importorskip("dask.bag")
    lines = bags.from_sequence([f"line {number}" for number in range(1000)], npartitions=4)
    lines.to_textfiles(f"{url}/text/*.txt")
    assert bags.read_text(f"{url}/text/*.txt").count().compute(scheduler="processes", num_workers=2) == 1000


def test_duckdb_queries_files(url, table):
    duckdb = pytest.importorskip("duckdb")
    table.to_parquet(f"{url}/table.parquet")
    fs, _ = fsspec.core.url_to_fs(url)
    with duckdb.connect() as database:
        database.register_filesystem(fs)
        rows = database.execute(f"select key, sum(count) from '{url}/table.parquet' group by key order by key").fetchall()
        database.execute(f"copy (select 42 as answer) to '{url}/answer.csv' (header)")
    assert rows == list(table.groupby("key")["count"].sum().sort_index().items())
    assert fs.cat(f"{url}/answer.csv").split() == [b"answer", b"42"]


def test_hugging_face_datasets_load_and_save(url, table, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    datasets = pytest.importorskip("datasets")
    given = datasets.Dataset.from_pandas(table.head(1000))
    given.save_to_disk(f"{url}/saved")
    assert datasets.load_from_disk(f"{url}/saved")["count"] == table["count"].head(1000).tolist()
    table.head(1000).to_csv(f"{url}/some.csv", index=False)
    loaded = datasets.load_dataset("csv", data_files=f"{url}/some.csv", cache_dir=str(tmp_path / "cache"))
    assert loaded["train"].num_rows == 1000
    table.head(1000).to_parquet(f"{url}/some.parquet")
    streamed = datasets.load_dataset("parquet", data_files=f"{url}/some.parquet", streaming=True)
    assert sum(row["count"] for row in streamed["train"]) == int(table["count"].head(1000).sum())


def test_files_are_what_numpy_and_the_standard_library_take(job):
    import tarfile
    import zipfile

    array = np.random.default_rng(1).normal(size=(300, 300))
    with job.open("/array.npy", "wb") as file:
        np.save(file, array)
    with job.open("/array.npy", "rb") as file:
        assert (np.load(file) == array).all()
    with job.open("/all.zip", "wb") as file, zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a", b"a" * 100_000)
    with job.open("/all.zip", "rb") as file, zipfile.ZipFile(file) as archive:
        assert archive.read("a") == b"a" * 100_000
    with job.open("/all.tar.gz", "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        archive.add(os.__file__, "os.py")
    with job.open("/all.tar.gz", "rb") as file, tarfile.open(fileobj=file) as archive:
        assert archive.extractfile("os.py").read(3) == b'r"""'[:3]
