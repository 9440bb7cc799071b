"""What each engine makes of the official JSON Schema test suite, keyword by keyword.

`python -m tests.plugins.grammar.keyword_support` runs the suite with every installed engine, writes
`keyword_support.json` beside this file and the table of docs/proposers.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from phyla.draft.compiling import ConstraintCompiler
from phyla.plugins import PluginManager
from phyla.settings import Settings

from tests.plugins.grammar.schema_suite import DISTRIBUTION, DRAFT, VERSION, Case, suite
from tests.plugins.grammar.schema_verdicts import TOKENIZER, Verdict, verdict

RESULT = Path(__file__).with_name("keyword_support.json")
PAGE = Path(__file__).parents[3] / "docs" / "proposers.md"
BEGIN, END = "<!-- keyword support -->\n", "<!-- end of keyword support -->\n"

Counts = dict[str, dict[str, int]]
"""By file of the suite, which is named for its keyword: cases, and what became of them."""


def counted(verdicts: Iterable[tuple[Case, Verdict]]) -> Counts:
    """Of each keyword's cases, how many the engine took and how many valid values it lets a model write.

    `wrong` is what must never be: invalid values that it lets a model write.
    """
    counts: Counts = {}
    for case, said in verdicts:
        one = counts.setdefault(case.file, {"cases": 0, "taken": 0, "valid": 0, "written": 0, "wrong": 0})
        one["cases"] += 1
        is_taken = said != "refused"
        one["taken"] += is_taken
        one["valid"] += is_taken and case.is_valid
        one["written"] += said == "accepted" and case.is_valid
        one["wrong"] += said == "accepted" and not case.is_valid
    return counts


def table(result: Mapping[str, Any]) -> str:
    """The table of the docs."""
    engines = list(result["engines"])
    files = list(result["engines"][engines[0]]["keywords"])
    head = ["keyword", "cases", *(f"{engine} {result['engines'][engine]['version']}" for engine in engines)]
    lines = [f"| {' | '.join(head)} |", f"| {' | '.join('---' for _ in head)} |"]
    for file in files:
        of_engines = [result["engines"][engine]["keywords"][file] for engine in engines]
        cells = [f"`{file}`", str(of_engines[0]["cases"]), *(_cell(counts) for counts in of_engines)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def with_table(page: str, result: Mapping[str, Any]) -> str:
    """The page with the table between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table(result)}\n{END}{after}"


def _cell(counts: Mapping[str, int]) -> str:
    if not counts["taken"]:
        return "refused"
    taken = "all" if counts["taken"] == counts["cases"] else str(counts["taken"])
    return f"{taken} taken, {counts['written']} of {counts['valid']} valid"


def main() -> None:
    """Run the suite and write what came of it."""
    import tempfile

    import phyla_llguidance
    import phyla_xgrammar

    with tempfile.TemporaryDirectory() as folder:
        cases = suite(Path(folder))
    result: dict[str, Any] = {"suite": f"{DRAFT} of {DISTRIBUTION} {VERSION}", "engines": {}}
    for name, plugin in (("llguidance", phyla_llguidance), ("xgrammar", phyla_xgrammar)):
        manager = PluginManager()
        manager.register(name, plugin)
        engines = [one.value for one in manager.proposers(Settings([]))]
        compiler = ConstraintCompiler(engines, TOKENIZER, TOKENIZER.eos_ids)  # type: ignore[arg-type]
        counts = counted((case, verdict(compiler, case.schema, case.value)) for case in cases)
        compiler.close()
        result["engines"][name] = {"version": version(name), "keywords": counts}
    RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(with_table(PAGE.read_text("utf-8"), result), encoding="utf-8")


if __name__ == "__main__":
    main()
