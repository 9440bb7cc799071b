"""What users write, and what is refused before anything is loaded."""

import json
from pathlib import Path
from typing import Any

import pytest
from phyla.errors import PhylaError, SettingsError, UnsupportedScheme
from phyla.plan import Plan
from phyla.plugins import discover
from phyla.selection import select
from phyla.settings import load_settings
from phyla.testing.stepping import TEST_BACKEND
from phyla.testing.tiny import tiny_checkpoint
from phyla.testing.tiny.configs import tiny_config

ENTRIES = [{"layer_idx": 0, "bits": 8, "group_size": 64}, {"layer_idx": 1, "bits": 4, "group_size": 32}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    config = tiny_config("llama", head_dim=64, num_hidden_layers=2)
    return tiny_checkpoint(tmp_path / "tiny", config)


def planned(folder: Path, **flags: str) -> Plan:
    manager = discover()
    spelt: dict[str, Any] = {f"--{name.replace('_', '-')}": text for name, text in flags.items()}
    settings = load_settings(manager.settings_sections(), flags=spelt, env={})
    return select(str(folder), manager, settings, TEST_BACKEND)


@pytest.mark.parametrize(
    ("flags", "identity"),
    [
        ({"kv_scheme": "affine"}, "affine:8"),
        ({"kv_scheme": "affine:4"}, "affine:4"),
        ({"kv_quant": "8"}, "affine:8"),
        ({"kv_bits": "4", "kv_group_size": "32"}, "affine:4g32"),
        ({"kv_quant": "4", "quantized_kv_start": "5000"}, "affine:4s5000"),
        ({"kv_quant": "4", "fused_sdpa": "on"}, "affine:4+fused"),
        ({"kv_scheme": "full=affine:8g32"}, "affine:8g32"),
    ],
)
def test_spellings(folder: Path, flags: dict[str, str], identity: str) -> None:
    plan = planned(folder, **flags)
    assert plan.layer_schemes == (identity, identity)
    assert plan.fused_sdpa == identity.endswith("+fused")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("affine:3", "asks for 3 bits; affine storage has 4 and 8"),
        ("affine:8g48", "groups of 48; they can be 32, 64, 128"),
        ("affine:lots", "isn't bits with an optional group size.*affine:4g32"),
        ("affine:8g128", "keys are 64 wide, which groups of 128 don't divide; groups of 32 or 64 would. Or use .*"),
    ],
)
def test_what_cannot_be_packed_is_refused_with_what_would(folder: Path, spec: str, message: str) -> None:
    with pytest.raises(PhylaError, match=message):
        planned(folder, kv_scheme=spec)


def test_a_head_size_that_no_group_divides_is_refused(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "tiny", tiny_config("llama", head_dim=16))
    with pytest.raises(UnsupportedScheme, match="keys are 16 wide.*no group size does"):
        planned(folder, kv_quant="8")


def test_a_file_beside_the_checkpoint_decides_layer_by_layer(folder: Path) -> None:
    (folder / "kv_config.json").write_text(json.dumps(ENTRIES))
    plan = planned(folder, kv_quant="config")
    assert plan.layer_schemes[0].startswith("affine:config-")
    assert plan.fused_sdpa
    assert planned(folder, l2="1").layer_schemes == plan.layer_schemes
    assert not planned(folder, kv_quant="config", fused_sdpa="off").fused_sdpa


def test_another_file_has_another_identity(folder: Path) -> None:
    identities = set()
    for bits in (4, 8):
        (folder / "kv_config.json").write_text(json.dumps([{**one, "bits": bits} for one in ENTRIES]))
        identities.add(planned(folder, kv_quant="config").layer_schemes[0])
    assert len(identities) == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "has no kv_config.json.*--kv-scheme affine:8"),
        (ENTRIES[:1], "says nothing about layer_idx 1"),
        ([*ENTRIES, {"layer_idx": 2, "bits": 8, "group_size": 64}], "layer_idx 2; .* are 0 to 1"),
        ([*ENTRIES, ENTRIES[0]], "two entries for layer_idx 0"),
        ([ENTRIES[0], {"layer_idx": 1, "bits": 6, "group_size": 64}], "Entry 1 .* 6 bits; affine storage has 4 and 8"),
        ([ENTRIES[0], {"layer_idx": 1, "bits": 8, "group_size": 128}], "keys are 64 wide, .* groups of 32 or 64 would"),
        ([ENTRIES[0], {"layer_idx": True, "bits": 8, "group_size": 64}], "Entry 1 .* whole numbers"),
        ([ENTRIES[0], 7], "Entry 1 .* must be an object"),
        ({"0": 8}, "must be an array"),
        ("{", "isn't JSON|must be an array"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(folder: Path, content: Any, message: str) -> None:
    if content is not None:
        (folder / "kv_config.json").write_text(json.dumps(content))
    with pytest.raises((SettingsError, UnsupportedScheme), match=message):
        planned(folder, kv_quant="config")


def test_damaged_json_is_refused(folder: Path) -> None:
    (folder / "kv_config.json").write_text("[{")
    with pytest.raises(SettingsError, match="isn't JSON"):
        planned(folder, kv_quant="config")
