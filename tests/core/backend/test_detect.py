from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import phyla.backend.detect as detection
import pytest
from phyla.backend.detect import detect, import_mlx, main_memory_bytes, remedy
from phyla.errors import BackendError


def test_this_machine_has_a_device_and_memory() -> None:
    facts = detect()
    assert facts.device in ("metal", "cuda", "cpu")
    assert 0 < facts.working_set_bytes <= facts.memory_bytes


def test_asking_twice_gives_the_same_facts() -> None:
    assert detect() == detect()


def test_memory_stays_within_the_machine() -> None:
    assert main_memory_bytes() > 2**28


def test_an_mlx_without_its_library_names_both_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlx.core", None)
    with pytest.raises(BackendError, match="can't be imported"):
        import_mlx()


def test_the_remedy_on_linux_names_both_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    assert "phyla[cpu]" in remedy(())
    assert "phyla[cuda]" in remedy(())


def test_two_suppliers_are_told_to_be_removed_and_one_installed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    line = remedy(("mlx-cpu 0.32.4", "mlx-cuda-13 0.32.4"))
    assert "pip uninstall mlx-cpu mlx-cuda-13" in line
    assert "--force-reinstall" in line


def fake_mlx(device_info: dict[str, object]) -> SimpleNamespace:
    gpu = object()
    return SimpleNamespace(
        __version__="0.0",
        device_info=lambda: device_info,
        default_device=lambda: SimpleNamespace(type=gpu),
        DeviceType=SimpleNamespace(gpu=gpu),
    )


def test_metal_reports_its_recommended_working_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    info = {"device_name": "Apple M4", "memory_size": 2**34, "max_recommended_working_set_size": 2**33}
    monkeypatch.setattr(detection, "import_mlx", lambda: fake_mlx(dict(info)))
    facts = detect()
    assert (facts.device, facts.device_name, facts.memory_bytes, facts.working_set_bytes, facts.blas) == (
        "metal",
        "Apple M4",
        2**34,
        2**33,
        "",
    )


def test_cuda_keeps_a_tenth_of_its_memory_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(detection, "import_mlx", lambda: fake_mlx({"device_name": "H200", "total_memory": 10**11}))
    facts = detect()
    assert (facts.device, facts.memory_bytes, facts.working_set_bytes) == ("cuda", 10**11, 9 * 10**10)


def test_a_library_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="libnone"):
        # A name is looked at before the process's earlier choice is taken, so a typo never passes silently.
        detect(blas=str(tmp_path / "libnone.so"))
