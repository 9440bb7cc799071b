"""Flag over variable over file over default, and what is said about everything unknown."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from phyla.errors import SettingsError, UnknownName
from phyla.settings import BinaryGiB, DecimalGB, OnOff, Origin, PluginSettings, load_settings, setting


class RoomSettings(PluginSettings, section="room"):
    """A section for these tests."""

    chairs: int = setting(8, flag="--chairs", aliases=("--seats",), lever="OLD_CHAIRS", ge=1)
    """Chairs in the room."""

    paint: Literal["white", "green"] = setting("white", flag="--paint")
    lamp: OnOff = setting(True, flag="--lamp", inverted_lever="NO_LAMP")
    carpet: bool = setting(False, flag="--carpet")
    quiet: bool = setting(True, switches={"--noisy": "0"})
    storage: BinaryGiB | None = setting(None, flag="--storage")
    budget: DecimalGB = setting("2", flag="--budget")
    guests: tuple[str, ...] = setting((), flag="--guest")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "phyla.toml"
    path.write_text("[room]\nchairs = 3\npaint = 'green'\n")
    return path


def test_a_default_is_used_when_nothing_sets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = load_settings([RoomSettings], env={})
    assert settings.section(RoomSettings).chairs == 8
    assert settings.origin(RoomSettings, "chairs") == Origin("default")


def test_a_file_beats_the_default(file: Path) -> None:
    settings = load_settings([RoomSettings], env={}, file=file)
    assert settings.section(RoomSettings).chairs == 3
    assert settings.origin(RoomSettings, "chairs").by == "file"


def test_a_variable_beats_the_file(file: Path) -> None:
    settings = load_settings([RoomSettings], env={"PHYLA_ROOM__CHAIRS": "4"}, file=file)
    assert settings.section(RoomSettings).chairs == 4
    assert settings.section(RoomSettings).paint == "green"
    assert settings.origin(RoomSettings, "chairs") == Origin("variable", "PHYLA_ROOM__CHAIRS")


def test_a_flag_beats_the_variable(file: Path) -> None:
    settings = load_settings([RoomSettings], flags={"--chairs": "5"}, env={"PHYLA_ROOM__CHAIRS": "4"}, file=file)
    assert settings.section(RoomSettings).chairs == 5
    assert settings.origin(RoomSettings, "chairs") == Origin("flag", "--chairs")


def test_the_file_is_found_in_the_working_folder(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    assert load_settings([RoomSettings], env={}).section(RoomSettings).chairs == 3


def test_a_variable_names_the_file(file: Path) -> None:
    settings = load_settings([RoomSettings], env={"PHYLA_CONFIG": str(file)})
    assert settings.section(RoomSettings).chairs == 3
    assert settings.notices == ()


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no settings file"):
        load_settings([RoomSettings], env={"PHYLA_CONFIG": str(tmp_path / "none.toml")})


def test_a_lever_sets_its_field() -> None:
    settings = load_settings([RoomSettings], env={"PHYLA_OLD_CHAIRS": "6"})
    assert settings.section(RoomSettings).chairs == 6
    assert settings.origin(RoomSettings, "chairs").where == "PHYLA_OLD_CHAIRS"


def test_a_lever_that_disagrees_with_the_variable_is_an_error() -> None:
    with pytest.raises(SettingsError, match="set one of them"):
        load_settings([RoomSettings], env={"PHYLA_OLD_CHAIRS": "6", "PHYLA_ROOM__CHAIRS": "7"})


def test_an_inverted_lever_switches_off() -> None:
    assert load_settings([RoomSettings], env={"PHYLA_NO_LAMP": "1"}).section(RoomSettings).lamp is False
    assert load_settings([RoomSettings], env={"PHYLA_NO_LAMP": "0"}).section(RoomSettings).lamp is True


@pytest.mark.parametrize("text", ["yes", "on", "true", "2", ""])
def test_a_variable_of_a_switch_takes_one_and_zero_only(text: str) -> None:
    with pytest.raises(SettingsError, match=r"PHYLA_ROOM__CARPET is .*1 \(on\) or 0 \(off\)"):
        load_settings([RoomSettings], env={"PHYLA_ROOM__CARPET": text})


@pytest.mark.parametrize(("word", "value"), [("on", True), ("off", False), ("TRUE", True), ("0", False)])
def test_a_word_flag_takes_words_and_so_does_its_variable(word: str, value: bool) -> None:
    assert load_settings([RoomSettings], flags={"--lamp": word}, env={}).section(RoomSettings).lamp is value
    assert load_settings([RoomSettings], env={"PHYLA_ROOM__LAMP": word}).section(RoomSettings).lamp is value


def test_a_word_and_a_lever_that_agree_are_no_contradiction() -> None:
    agreeing = {"PHYLA_ROOM__LAMP": "off", "PHYLA_NO_LAMP": "1"}
    assert load_settings([RoomSettings], env=agreeing).section(RoomSettings).lamp is False


def test_a_word_flag_names_what_it_expects() -> None:
    with pytest.raises(SettingsError, match=r"--lamp is 'maybe': expects on\|off \(got \"maybe\"\)"):
        load_settings([RoomSettings], flags={"--lamp": "maybe"}, env={})
    with pytest.raises(SettingsError, match=r"PHYLA_ROOM__LAMP is 'maybe': expects on\|off"):
        load_settings([RoomSettings], env={"PHYLA_ROOM__LAMP": "maybe"})
    with pytest.raises(SettingsError, match=r"PHYLA_NO_LAMP is 'on'; it takes 1 \(on\) or 0 \(off\)"):
        load_settings([RoomSettings], env={"PHYLA_NO_LAMP": "on"})


def test_a_switch_is_given_and_taken_back() -> None:
    assert load_settings([RoomSettings], flags={"--carpet": True}, env={}).section(RoomSettings).carpet is True
    taken_back = load_settings([RoomSettings], flags={"--no-carpet": True}, env={"PHYLA_ROOM__CARPET": "1"})
    assert taken_back.section(RoomSettings).carpet is False


def test_a_named_switch_stands_for_its_value() -> None:
    assert load_settings([RoomSettings], flags={"--noisy": True}, env={}).section(RoomSettings).quiet is False


def test_an_alias_sets_the_field() -> None:
    assert load_settings([RoomSettings], flags={"--seats": "2"}, env={}).section(RoomSettings).chairs == 2
    both = load_settings([RoomSettings], flags={"--chairs": "2", "--seats": "2"}, env={})
    assert both.section(RoomSettings).chairs == 2


def test_a_flag_and_its_alias_that_say_different_things_are_refused() -> None:
    with pytest.raises(SettingsError, match="--chairs and --seats set the same thing differently"):
        load_settings([RoomSettings], flags={"--chairs": "5", "--seats": "2"}, env={})


def test_a_variable_with_several_values_is_separated_by_commas() -> None:
    settings = load_settings([RoomSettings], env={"PHYLA_ROOM__GUESTS": "ann, ben"})
    assert settings.section(RoomSettings).guests == ("ann", "ben")


def test_a_bad_value_names_the_place_and_the_choices() -> None:
    with pytest.raises(SettingsError, match=r"PHYLA_ROOM__PAINT is 'blue'.*'white' or 'green'"):
        load_settings([RoomSettings], env={"PHYLA_ROOM__PAINT": "blue"})


def test_a_number_out_of_range_names_the_bound() -> None:
    with pytest.raises(SettingsError, match=r"--chairs is '0'.*greater than or equal to 1"):
        load_settings([RoomSettings], flags={"--chairs": "0"}, env={})


def test_an_unknown_flag_names_the_near_match() -> None:
    with pytest.raises(UnknownName, match=r"flag '--chair'\. Did you mean '--chairs'"):
        load_settings([RoomSettings], flags={"--chair": "3"}, env={})


def test_an_unknown_variable_is_a_notice_with_the_near_match() -> None:
    settings = load_settings([RoomSettings], env={"PHYLA_ROOM__CHAIR": "3", "OTHER": "x"})
    assert settings.notices == (
        "PHYLA_ROOM__CHAIR is set, but nothing here reads it. Did you mean PHYLA_ROOM__CHAIRS?",
    )


def test_an_unknown_key_in_the_file_names_the_near_match(tmp_path: Path) -> None:
    (tmp_path / "phyla.toml").write_text("[room]\nchars = 3\n")
    with pytest.raises(UnknownName, match=r"setting in \[room\] of phyla.toml called 'chars'\. Did you mean 'chairs'"):
        load_settings([RoomSettings], env={}, file=tmp_path / "phyla.toml")


def test_an_unknown_section_in_the_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "phyla.toml").write_text("[rooms]\nchairs = 3\n")
    with pytest.raises(UnknownName, match="Did you mean 'room'"):
        load_settings([RoomSettings], env={}, file=tmp_path / "phyla.toml")


def test_the_section_of_a_switched_off_plugin_may_stay_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "phyla.toml").write_text("[garden]\ntrees = 3\n")
    settings = load_settings([RoomSettings], env={}, file=tmp_path / "phyla.toml", absent=["garden"])
    assert settings.notices == ("phyla.toml: section [garden] is passed over: its plugin is switched off.",)


def test_a_damaged_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "phyla.toml").write_text("[room\n")
    with pytest.raises(SettingsError, match="isn't valid TOML"):
        load_settings([RoomSettings], env={}, file=tmp_path / "phyla.toml")


@pytest.mark.parametrize(
    ("text", "num_bytes"), [("8", 8 * 2**30), ("0.5", 2**29), ("8GiB", 8 * 2**30), ("20GB", 20 * 10**9), ("0", 0)]
)
def test_a_bare_binary_size_counts_gib(text: str, num_bytes: int) -> None:
    assert load_settings([RoomSettings], flags={"--storage": text}, env={}).section(RoomSettings).storage == num_bytes


@pytest.mark.parametrize(("text", "num_bytes"), [("8", 8 * 10**9), ("8GiB", 8 * 2**30), ("800mb", 800 * 10**6)])
def test_a_bare_decimal_size_counts_gb(text: str, num_bytes: int) -> None:
    assert load_settings([RoomSettings], flags={"--budget": text}, env={}).section(RoomSettings).budget == num_bytes


def test_a_size_that_is_none_says_what_one_looks_like() -> None:
    with pytest.raises(SettingsError, match=r"--storage is 'much'.*8GiB"):
        load_settings([RoomSettings], flags={"--storage": "much"}, env={})


def test_an_accepted_lever_is_answered_with_one_line() -> None:
    settings = load_settings([RoomSettings], env={"PHYLA_BATCH_EXTEND": "0", "PHYLA_FUSED_SWIGLU_V2": "1"})
    assert settings.notices == (
        "PHYLA_BATCH_EXTEND is accepted: joining a running batch always costs the same here.",
        "PHYLA_FUSED_SWIGLU_V2 is accepted: removed upstream, no effect.",
    )


def test_two_sections_of_one_name_are_an_error() -> None:
    class Other(PluginSettings, section="room"):
        """Same name."""

    with pytest.raises(SettingsError, match=r"Two settings sections are called \[room\]"):
        load_settings([RoomSettings, Other], env={})


def test_two_fields_with_one_flag_are_an_error() -> None:
    class Hall(PluginSettings, section="hall"):
        """Takes a flag that is taken."""

        seats: int = setting(1, flag="--seats")

    with pytest.raises(SettingsError, match="flag --seats is declared twice"):
        load_settings([RoomSettings, Hall], env={})


def test_a_partial_load_passes_over_what_belongs_to_others(tmp_path: Path) -> None:
    (tmp_path / "phyla.toml").write_text("[garden]\ntrees = 3\n")
    settings = load_settings(
        [RoomSettings], flags={"--other": "1"}, env={"PHYLA_X": "1"}, file=tmp_path / "phyla.toml", partial=True
    )
    assert settings.notices == ()


def test_a_field_can_be_given_as_if_by_its_flag() -> None:
    settings = load_settings([RoomSettings], flags={"--chairs": "3"}, env={})
    changed = settings.with_flag(RoomSettings, "paint", "green", "--paint")
    assert (changed.section(RoomSettings).paint, changed.section(RoomSettings).chairs) == ("green", 3)
    assert changed.origin(RoomSettings, "paint") == Origin("flag", "--paint")
    assert settings.section(RoomSettings).paint == "white"
