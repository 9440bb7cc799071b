"""What was asked for each question, and by whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from phyla.plan import Choice, PlanAnswer, Question
from phyla.plugins import Declared
from phyla.selection.settings import SelectionSettings
from phyla.settings import Settings

AUTO = "auto"
QUESTIONS: tuple[Question, ...] = ("family", "kv_scheme", "method", "proposer", "weights", "dtype")


@dataclass(frozen=True)
class Wanted:
    """The answer that was asked for, or `auto`."""

    name: str = AUTO
    chosen_by: str = AUTO
    """`flag`, `variable`, `file`, `auto`, or `plugin NAME`."""

    where: str = ""
    """The flag, variable or key that said so."""

    reason: str = ""
    """A plugin's."""

    @property
    def is_auto(self) -> bool:
        return self.name == AUTO

    def choice(self, name: str, reason: str = "", rejected: tuple[tuple[str, str], ...] = ()) -> Choice:
        """The decision that this led to."""
        return Choice(name, self.chosen_by, self.reason or reason or f"asked for with {self.where}", rejected)


def wanted_of(settings: Settings, question: Question) -> Wanted:
    """What the user asked."""
    name = str(getattr(settings.section(SelectionSettings), question))
    if name == AUTO:
        return Wanted()
    origin = settings.origin(SelectionSettings, question)
    # A section that was filled by hand, in a test or by the library, counts as a flag.
    by = origin.by if origin.is_explicit else "flag"
    return Wanted(name, by, origin.where or f"--{question.replace('_', '-')}")


def wanted_by_plugin(answer: Declared[PlanAnswer], question: Question) -> Wanted:
    """What a plugin would rather have than the default."""
    return Wanted(
        answer.value.choices[question], f"plugin {answer.plugin}", f"plugin {answer.plugin}", answer.value.reason
    )


WantedMap = Mapping[Question, Wanted]
