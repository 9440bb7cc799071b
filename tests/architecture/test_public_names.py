"""`__all__` tells the truth, wherever it is."""

from __future__ import annotations

import ast

from tests.architecture.sources import Source, sources


def test_every_name_in_all_exists() -> None:
    wrong = {source.where: sorted(_listed(source) - _bound(source)) for source in sources()}
    assert {where: names for where, names in wrong.items() if names} == {}


def test_no_name_is_listed_twice() -> None:
    wrong = [source.where for source in sources() if len(_entries(source)) != len(set(_entries(source)))]
    assert wrong == []


def test_what_a_package_reexports_is_listed() -> None:
    wrong = {
        source.where: sorted(_reexported(source) - _listed(source))
        for source in sources()
        if source.path.name == "__init__.py" and _entries(source)
    }
    assert {where: names for where, names in wrong.items() if names} == {}


def test_the_front_package_has_a_home_for_each_name() -> None:
    front = next(source for source in sources() if source.module == "phyla")
    homes = next(
        ast.literal_eval(node.value)
        for node in front.tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_HOMES"
    )
    by_name = {source.module: source for source in sources()}
    assert set(homes) == _listed(front)
    assert {name: home for name, home in homes.items() if name not in _bound(by_name[home])} == {}


def _entries(source: Source) -> list[str]:
    for node in source.tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [str(one) for one in ast.literal_eval(node.value)]
    return []


def _listed(source: Source) -> set[str]:
    return set(_entries(source))


def _bound(source: Source) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
        elif isinstance(node, ast.Assign):
            names.update(ast.unparse(target) for target in node.targets)
        elif isinstance(node, ast.AnnAssign):
            names.add(ast.unparse(node.target))
    return names


def _reexported(source: Source) -> set[str]:
    return {
        alias.asname or alias.name
        for node in source.tree.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == source.package
        for alias in node.names
        if not alias.name.startswith("_")
    }
