"""Settings: sections declared by core and by plugins, filled from flags, variables, a file and defaults.

The only package that reads the environment. A section is a plain pydantic model; a field says which command-line flag
and which `PHYLA_` lever also set it:

    class EngineSettings(PluginSettings, section="engine"):
        batch: int = setting(8, flag="--batch", aliases=("--decode-concurrency",), ge=1)
        \"\"\"Rows decoded together; 1 is strict.\"\"\"

It is then set by `--batch 4`, `PHYLA_ENGINE__BATCH=4`, or `batch = 4` under `[engine]` in `phyla.toml`, in that order.
"""

from phyla.settings.filled import Origin, SetBy, Settings
from phyla.settings.loading import flags_from_options, load_settings
from phyla.settings.section import PluginSettings, SettingField, declared_fields, setting
from phyla.settings.values import AutoOnOff, BinaryGiB, DecimalGB, OnOff, parse_size

__all__ = [
    "AutoOnOff",
    "BinaryGiB",
    "DecimalGB",
    "OnOff",
    "Origin",
    "PluginSettings",
    "SetBy",
    "SettingField",
    "Settings",
    "declared_fields",
    "flags_from_options",
    "load_settings",
    "parse_size",
    "setting",
]
