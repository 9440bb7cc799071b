"""Every error Phyla raises on purpose.

PhylaError
├── UsageError                 a flag, setting or argument that can't be honoured      (exit 2, HTTP 400)
│   ├── UnknownName            nothing has that name; lists the near match and what exists
│   ├── SettingsError          a setting, variable or file entry with a bad value
│   └── RefusedCombination     two explicit choices that exclude each other
├── PluginError                a plugin broke its side of the contract; names the plugin
│   ├── PluginImportError      it raised while it was imported
│   ├── PluginApiError         its `phyla_api` is missing or doesn't match
│   └── DuplicatePlugin        two distributions offer one name
├── CheckpointError            a model folder or file that can't be used
│   ├── CheckpointNotFound     nothing at that reference
│   ├── DamagedCheckpoint      truncated, hostile or inconsistent files
│   ├── WeightMismatch         missing, unused or misshapen tensors, all of them listed
│   └── UnsupportedModel       no family claims it; names who was asked
├── TokenizerError             missing or unusable tokenizer files
│   └── TemplateError          the chat template is missing, raised or ran past its limits
├── LayoutError                arrays or layers that don't fit what a cache was made for
│   ├── UnsupportedScheme      a KV scheme can't store a layer; says which and why
│   └── CannotRewind           a state was asked for tokens that it no longer has
├── RequestError               one request can't be served; the others go on             (HTTP 400)
│   ├── ContextOverflow        prompt, or prompt and cap, past the context limit
│   ├── OverBudget             more than --memory-budget or --kv-budget allows, even alone
│   ├── ConstraintError        a grammar or schema that can't be enforced
│   └── GenerationFailed       the request's own work raised                             (HTTP 500)
├── QueueFull                  too many requests are waiting                             (HTTP 429)
├── EngineStopped              the engine thread is gone; says why                       (HTTP 503)
├── AddressTaken               something already listens where a server should           (exit 1)
├── MeasurementFailed          nothing could be measured: no server, or no answer        (exit 1)
├── BackendError               MLX can't be imported or a device can't be used
└── CodecError                 a cache file that is damaged, foreign or too old
"""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Iterable


class PhylaError(Exception):
    """Base of all errors that Phyla raises on purpose; the message names the remedy."""


class UsageError(PhylaError):
    """A flag, setting or argument that can't be honoured."""


class UnknownName(UsageError):
    """Nothing is called that."""

    def __init__(self, kind: str, name: str, existing: Iterable[str]) -> None:
        known = sorted(existing)
        near = difflib.get_close_matches(name, known, n=1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        listed = ", ".join(known) if known else "none"
        super().__init__(f"There is no {kind} '{name}'.{hint} Known: {listed}.")
        self.kind = kind
        self.name = name
        self.near = near[0] if near else None


class SettingsError(UsageError):
    """A setting, variable or file entry that has no such name or a bad value."""


class RefusedCombination(UsageError):
    """Two explicit choices that exclude each other."""


class PluginError(PhylaError):
    """A plugin broke its side of a contract.

    Args:
        plugin: the entry point's name.
        message: what it did, and what to do about it.
    """

    def __init__(self, plugin: str, message: str) -> None:
        super().__init__(f"Plugin '{plugin}': {message}")
        self.plugin = plugin


class PluginImportError(PluginError):
    """The plugin raised while it was imported."""


class PluginApiError(PluginError):
    """The plugin doesn't declare the hook API version that this core speaks."""


class DuplicatePlugin(PluginError):
    """Two distributions offer a plugin under one name."""


class CheckpointError(PhylaError):
    """A model folder or file that can't be used."""


class CheckpointNotFound(CheckpointError):
    """There is nothing at that reference."""


class DamagedCheckpoint(CheckpointError):
    """The files are truncated, hostile or contradict each other."""


class WeightMismatch(CheckpointError):
    """Tensors that are missing, unused or of the wrong shape; the message lists all of them."""


class UnsupportedModel(CheckpointError):
    """No family claims this checkpoint."""


class TokenizerError(PhylaError):
    """The tokenizer files are missing or can't be used."""


class TemplateError(TokenizerError):
    """The chat template is missing, raised, or ran past its limits."""


class LayoutError(PhylaError):
    """Arrays or layers that don't fit what a cache was made for."""


class UnsupportedScheme(LayoutError):
    """A KV scheme can't store a layer; the message says which one and why."""


class CannotRewind(LayoutError):
    """A state was asked to go back to tokens that it no longer has."""


class RequestError(PhylaError):
    """One request can't be served; the others go on."""


class ContextOverflow(RequestError):
    """The prompt, or the prompt and the completion cap, is past the context limit."""


class OverBudget(RequestError):
    """The request would need more memory than a budget allows, even alone."""


class ConstraintError(RequestError):
    """A grammar or schema that can't be compiled or enforced; names the keyword."""


class ConstraintUntried(ConstraintError):
    """Nothing is said against the constraint: trying it came to no end, maybe for reasons of this machine's. Another
    time it may be tried."""


class GenerationFailed(RequestError):
    """The request's own work raised; carries the cause."""


class QueueFull(PhylaError):
    """Too many requests are waiting."""


class EngineStopped(PhylaError):
    """The engine thread is gone; the message says why."""


class AddressTaken(PhylaError):
    """Something already listens at the address; the message says what, and what to do."""


class MeasurementFailed(PhylaError):
    """Nothing could be measured: the server didn't start, or didn't answer."""


class BackendError(PhylaError):
    """MLX can't be imported, or a device can't be used."""


class CodecError(PhylaError):
    """A cache file is damaged, foreign, or written under another identity."""


def stack_of(error: BaseException) -> str:
    """Where an error, and what caused it, was raised, for logs: without their messages, which may quote a prompt."""
    lines: list[str] = []
    chain: list[BaseException] = []
    one: BaseException | None = error
    while one is not None and one not in chain:
        chain.append(one)
        lines.append(f"{type(one).__module__}.{type(one).__qualname__}, raised at")
        frames = traceback.extract_tb(one.__traceback__)
        lines += [f'  File "{frame.filename}", line {frame.lineno}, in {frame.name}' for frame in frames]
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
    return "\n".join(lines)
