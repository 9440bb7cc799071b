"""Who may import whom: arrows point at core, and inside core downwards."""

from __future__ import annotations

from tests.architecture.sources import Source, loaded_by_importing, pyproject, sources

LAYERS = (
    {"errors"},
    {"backend", "settings", "request", "output"},
    {"checkpoint", "tokenizer", "registry"},
    {"kv"},
    {"nn"},
    {"model"},
    {"sampling"},
    {"draft"},
    {"engine"},
    {"plan", "selection", "plugins", "hookspecs", "builtin", "baseline"},
    {"library", "assembly"},
    {"cli", "testing"},
)
"""Core's top-level modules, lowest first; a module imports its own layer and those below."""

RANKS = {name: rank for rank, names in enumerate(LAYERS) for name in names}

HEAVY = (
    "mlx",
    "mlx_lm",
    "transformers",
    "torch",
    "xgrammar",
    "llguidance",
    "numpy",
    "litestar",
    "uvicorn",
    "tokenizers",
)


def test_core_never_names_a_plugin() -> None:
    offences = [
        f"{source.where}:{one.line} imports {one.module}"
        for source in sources()
        if source.root == "core"
        for one in source.imports()
        if one.module.startswith("phyla_")
    ]
    assert offences == []


def test_plugins_import_phyla_and_themselves_only() -> None:
    offences = [
        f"{source.where}:{one.line} imports {one.module}"
        for source in sources()
        if source.root != "core"
        for one in source.imports()
        if one.module.startswith("phyla_") and one.module.split(".")[0] != source.package
    ]
    assert offences == []


def test_every_module_of_core_has_a_layer() -> None:
    tops = {source.module.split(".")[1] for source in sources() if source.root == "core" and "." in source.module}
    assert tops - set(RANKS) == set(), "give it a place in LAYERS of this file"


def test_core_imports_downwards_only() -> None:
    offences = [
        f"{source.where}:{one.line} imports {one.module}"
        for source in sources()
        if source.root == "core" and "." in source.module
        for one in source.imports()
        if one.at_run_time and _layer(one.module) is not None and _layer(one.module) > _rank(source)  # type: ignore[operator]
    ]
    assert offences == []


def test_only_the_server_and_route_giving_plugins_import_litestar() -> None:
    giving_routes = {source.package for source in sources() if "def phyla_routes" in source.path.read_text("utf-8")}
    offences = _importing(("litestar", "uvicorn", "starlette"), allowed=giving_routes - {"phyla"} | {"phyla_server"})
    assert offences == []


def test_only_the_bridge_and_the_oracle_import_mlx_lm() -> None:
    offences = [one for one in _importing(("mlx_lm",), allowed={"phyla_mlxlm"}) if "core/phyla/testing/" not in one]
    assert offences == []


def test_transformers_is_never_imported_while_a_module_loads() -> None:
    offences = [
        f"{source.where}:{one.line} imports {one.module}"
        for source in sources()
        if "core/phyla/testing/" not in source.where
        for one in source.imports()
        if one.at_import and one.module.split(".")[0] in ("transformers", "torch")
    ]
    assert offences == []


def test_the_command_line_and_the_package_load_nothing_heavy() -> None:
    loaded = loaded_by_importing("phyla.cli.main") | loaded_by_importing("phyla")
    assert _heavy(loaded) == []


def test_no_plugin_package_loads_anything_heavy_before_it_is_chosen() -> None:
    packages = [target.split(":")[0] for target in pyproject()["project"]["entry-points"].get("phyla", {}).values()]
    offences = {package: _heavy(loaded_by_importing(package)) for package in packages}
    assert {package: heavy for package, heavy in offences.items() if heavy} == {}


def test_every_plugin_package_is_built_and_checked() -> None:
    packages = {source.package: f"{source.root}/{source.package}" for source in sources()}
    built = set(pyproject()["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
    assert set(packages.values()) - built == set(), "add it to the wheel's packages in pyproject.toml"
    assert set(packages) - set(pyproject()["tool"]["mypy"]["packages"]) == set(), "add it to mypy's packages"


def test_no_file_is_a_drawer_for_everything() -> None:
    drawers = {"utils", "util", "common", "helpers", "helper", "misc"}
    assert [source.where for source in sources() if set(source.module.split(".")) & drawers] == []


def _layer(module: str) -> int | None:
    parts = module.split(".")
    return RANKS.get(parts[1]) if parts[0] == "phyla" and len(parts) > 1 else None


def _rank(source: Source) -> int:
    return RANKS.get(source.module.split(".")[1], len(LAYERS))


def _importing(libraries: tuple[str, ...], allowed: set[str]) -> list[str]:
    return [
        f"{source.where}:{one.line} imports {one.module}"
        for source in sources()
        if source.package not in allowed
        for one in source.imports()
        if one.module.split(".")[0] in libraries
    ]


def _heavy(loaded: dict[str, str]) -> list[str]:
    return sorted(f"{module}, asked for by {by}" for module, by in loaded.items() if module.split(".")[0] in HEAVY)
