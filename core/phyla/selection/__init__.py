"""From a reference and settings to a frozen plan: what will run, who chose it, and why the others lost.

Nothing is loaded here: openers read headers, families describe, schemes and methods say whether they can.
"""

from phyla.selection.parts import Parts, resolve
from phyla.selection.selecting import select
from phyla.selection.settings import SelectionSettings

__all__ = ["Parts", "SelectionSettings", "resolve", "select"]
