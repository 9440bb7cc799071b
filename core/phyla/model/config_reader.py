"""A config read key by key, everything that is wrong with it said at once. No mlx.

    reader = ConfigReader(config, "abacus")
    beads = reader.count("beads")
    reader.only({"shape": (None, "round")})
    reader.finish()

What was asked for is known; a key that nobody asked for may change what the model computes, and is an error too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from phyla.errors import CheckpointError, DamagedCheckpoint, UnsupportedModel
from phyla.model.config_keys import BOOKKEEPING

MOST_LAYERS = 4096
STAND_IN = 1
"""What a size that can't be read counts as, so that reading goes on to the next problem."""

Value = TypeVar("Value")


class ConfigReader:
    """One section of a config.

    Args:
        section: the keys.
        architecture: what the model is called in messages.
        advice: what a user can do about a model that asks for more than the family has; a sentence.
    """

    def __init__(self, section: Mapping[str, Any], architecture: str, advice: str = "") -> None:
        self.section = section
        self._architecture = architecture
        self._advice = f" {advice}" if advice else ""
        self._known: set[str] = set()
        # Insertion order without repeats: two readers of one key find the same fault.
        self._problems: dict[str, type[CheckpointError]] = {}

    def get(self, key: str, default: Any = None) -> Any:
        """The value as it is; absent and null are `default`."""
        self._known.add(key)
        value = self.section.get(key)
        return default if value is None else value

    def count(self, key: str, at_most: int | None = None) -> int:
        """A positive whole number."""
        value = self.get(key)
        if not self.is_count(key):
            return self._damage(f"'{key}' is {value!r}; it has to be a positive whole number.", STAND_IN)
        if at_most is not None and value > at_most:
            return self._damage(f"'{key}' is {value}; no model has more than {at_most}.", STAND_IN)
        return int(value)

    def is_count(self, key: str) -> bool:
        """Whether the value is a positive whole number."""
        value = self.get(key)
        return isinstance(value, int) and not isinstance(value, bool) and value > 0

    def positive(self, key: str) -> float:
        """A positive number."""
        value = self.get(key)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
            return self._damage(f"'{key}' is {value!r}; it has to be a positive number.", float(STAND_IN))
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        """True or false."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            return self._damage(f"'{key}' is {value!r}; it has to be true or false.", default)
        return value

    def multiple(self, whole: str, part: str) -> None:
        """Check that the second count divides the first, where both are counts."""
        if self.is_count(whole) and self.is_count(part) and self.count(whole) % self.count(part):
            self.damaged(f"'{whole}' ({self.section[whole]}) isn't a multiple of '{part}' ({self.section[part]}).")

    def layers(self, key: str, num_layers: int, kinds: Iterable[str]) -> list[str] | None:
        """A list with one of `kinds` for each layer, or None where the config has none."""
        stated = self.get(key)
        if stated is None:
            return None
        if not isinstance(stated, list) or len(stated) != num_layers:
            return self._damage(f"'{key}' is {stated!r}; it has to name {num_layers} layers.", None)
        known = tuple(kinds)
        for kind in sorted({repr(one) for one in stated if one not in known}):
            self.unsupported(f"'{key}' names {kind}; known are {', '.join(known)}.")
        return [one if one in known else known[0] for one in stated]

    def only(self, allowed: Mapping[str, tuple[Any, ...]]) -> None:
        """Check keys that could ask for another model against the values that ask for this one."""
        for key, values in allowed.items():
            if self.get(key) not in (None, *values):
                listed = ", ".join(repr(one) for one in values if one is not None) or "absent"
                self.unsupported(
                    f"A model of type {self._architecture} with '{key}': {self.section[key]!r} isn't known here; it "
                    f"has to be {listed}.{self._advice}"
                )

    def attempt(self, read: Callable[[], Value], stand_in: Value) -> Value:
        """What `read` returns, or the stand-in after noting the error that it raises."""
        try:
            return read()
        except (DamagedCheckpoint, UnsupportedModel) as error:
            self._problems[str(error)] = type(error)
            return stand_in

    def damaged(self, problem: str) -> None:
        """Note a contradiction."""
        self._problems[problem] = DamagedCheckpoint

    def unsupported(self, problem: str) -> None:
        """Note something that the family doesn't do."""
        self._problems[problem] = UnsupportedModel

    def knows(self, *keys: str) -> None:
        """Keys that somebody else reads, or that say nothing about the computation."""
        self._known.update(keys)

    def finish(self) -> None:
        """Say what was found.

        Raises:
            DamagedCheckpoint: something is missing or contradicts something else.
            UnsupportedModel: the model asks for something that the family doesn't do, and nothing is damaged.
        """
        self._refuse_unknown()
        if not self._problems:
            return
        problems = list(self._problems)
        is_damaged = DamagedCheckpoint in self._problems.values()
        text = problems[0]
        if len(problems) > 1:
            listed = "\n  ".join(problems)
            text = f"The config of this {self._architecture} has {len(problems)} problems:\n  {listed}"
        raise DamagedCheckpoint(text) if is_damaged else UnsupportedModel(text)

    def _refuse_unknown(self) -> None:
        unknown = unknown_keys(self.section, self._known)
        if unknown:
            listed = ", ".join(f"'{key}'" for key in unknown)
            self.unsupported(
                f"Nothing here knows the config's {listed}, which may change what the model computes. If it doesn't, "
                f"remove it from config.json.{self._advice}"
            )

    def _damage(self, problem: str, stand_in: Value) -> Value:
        self.damaged(problem)
        return stand_in


def unknown_keys(section: Mapping[str, Any], known: Iterable[str]) -> tuple[str, ...]:
    """Keys that aren't known, in order; null, false and what is empty ask for nothing."""
    named = {*known, *BOOKKEEPING}
    return tuple(
        sorted(
            key
            for key, value in section.items()
            if key not in named and not key.startswith("_") and value not in (None, False, "", [], {})
        )
    )
