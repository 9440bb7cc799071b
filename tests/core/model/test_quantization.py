"""The quantisation section of a config, and the forms that aren't read."""

import pytest
from phyla.errors import DamagedCheckpoint, UnsupportedModel
from phyla.model.quantization import parse_quant_section, quant_section
from phyla.nn.form import QuantForm


def parsed(**section):
    return parse_quant_section({"quantization": {"group_size": 64, "bits": 4, **section}})


def test_every_module_has_the_default_form_unless_listed():
    section = parsed(**{"a.b": {"group_size": 32, "bits": 8}, "c": False, "d": True})
    assert section.form_of("anything") == QuantForm(64, 4)
    assert section.form_of("a.b") == QuantForm(32, 8)
    assert section.form_of("c") is None
    assert section.form_of("d") == QuantForm(64, 4)


def test_an_override_names_its_mode_or_is_affine():
    section = parsed(mode="mxfp4", group_size=32, a={"bits": 8}, b={"group_size": 32, "bits": 8, "mode": "mxfp8"})
    assert section.form_of("x") == QuantForm(32, 4, "mxfp4")
    assert section.form_of("a") == QuantForm(32, 8, "affine")
    assert section.form_of("b") == QuantForm(32, 8, "mxfp8")


def test_the_older_key_and_the_text_section_are_read_too():
    assert parse_quant_section({"quantization_config": {"group_size": 32, "bits": 8}}).default == QuantForm(32, 8)
    nested = {"text_config": {"quantization": {"group_size": 32, "bits": 8}}}
    assert parse_quant_section(nested).default == QuantForm(32, 8)


def test_a_config_without_a_section_is_in_full_precision():
    assert quant_section({}) is None
    assert parse_quant_section({"quantization": None}).form_of("a") is None


@pytest.mark.parametrize("method", ["awq", "gptq", "fp8", "compressed-tensors", "bitnet"])
def test_forms_of_other_tools_are_refused_by_name(method):
    with pytest.raises(UnsupportedModel, match=rf"quantization_config.*'{method}'"):
        parse_quant_section({"quantization_config": {"quant_method": method, "bits": 4}})


@pytest.mark.parametrize(
    "section",
    [{"bits": 7}, {"group_size": 48}, {"mode": "trellis"}, {"mode": "mxfp4"}, {"bits": "4"}, {"a": {"bits": 1}}],
)
def test_widths_that_mlx_does_not_have_are_damage(section):
    with pytest.raises(DamagedCheckpoint, match="quantised"):
        parsed(**section)
