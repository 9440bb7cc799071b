from __future__ import annotations

import pytest
from phyla.backend import BackendFacts, Device, resolve_dtype, resolve_weights
from phyla.backend.strategy import Chosen
from phyla.errors import UnknownName, UsageError


def on(device: Device, working_set: int = 16 * 10**9) -> BackendFacts:
    return BackendFacts(device, "test", "0", working_set, working_set)


@pytest.mark.parametrize(
    ("device", "stored", "expected"),
    [
        ("metal", "bfloat16", "bfloat16"),
        ("cuda", "float16", "float16"),
        ("cpu", "bfloat16", "float32"),
        ("cpu", "float32", "float32"),
        ("cuda", "float8_e4m3", "bfloat16"),
    ],
)
def test_auto_takes_the_dtype_that_the_device_is_fast_in(device: Device, stored: str, expected: str) -> None:
    assert resolve_dtype("auto", stored, on(device)).value == expected


def test_an_asked_for_dtype_is_honoured_on_every_device() -> None:
    assert resolve_dtype("bfloat16", "float32", on("cpu")).value == "bfloat16"


def test_an_unknown_dtype_names_the_near_match() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'bfloat16'"):
        resolve_dtype("bfloat", "float32", on("cpu"))


DENSE, WHOLE = Chosen("dense", "5 us"), Chosen("whole", "5 us")


@pytest.mark.parametrize(
    ("device", "product", "dense_bytes", "expected"),
    [
        ("metal", WHOLE, 2 * 10**9, "stored"),
        ("cuda", DENSE, 2 * 10**9, "dense"),
        ("cpu", DENSE, 2 * 10**9, "dense"),
        ("cpu", DENSE, 9 * 10**9, "stored"),
    ],
)
def test_auto_dequantises_where_that_is_faster_and_fits(
    device: Device, product: Chosen, dense_bytes: int, expected: str
) -> None:
    assert resolve_weights("auto", 5 * 10**8, dense_bytes, on(device), product).value == expected


def test_weights_that_are_not_quantised_stay_as_they_are() -> None:
    assert resolve_weights("auto", 10**9, 10**9, on("cpu"), DENSE).value == "stored"


def test_an_asked_for_weight_form_is_honoured() -> None:
    assert resolve_weights("dense", 1, 15 * 10**9, on("metal"), WHOLE).value == "dense"


def test_dense_weights_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UsageError, match=r"take 17\.0 GB, and 16\.0 GB .* \(5\.0 GB\) with --weights stored"):
        resolve_weights("dense", 5 * 10**9, 17 * 10**9, on("cuda"), DENSE)
