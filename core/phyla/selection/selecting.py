"""The whole decision, in order: who opens it, who binds it, how it is stored, whether it drafts, in which numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from phyla.backend import BackendFacts
from phyla.backend.strategy import Strategies
from phyla.checkpoint import Checkpoint
from phyla.draft import DraftTarget
from phyla.engine.geometry import chosen_product
from phyla.engine.settings import EngineSettings
from phyla.errors import LayoutError, PhylaError, PluginError, UnsupportedModel, UsageError
from phyla.plan import Candidates, Choice, Plan, Question
from phyla.plugins import PluginManager, by_name
from phyla.registry import STARTER_NAME, ModelsSettings, local_reference
from phyla.selection.families import ChosenFamily, Families, choose_family, claiming
from phyla.selection.idle_flags import check_draft_flags
from phyla.selection.methods import NO_METHOD, ChosenMethod, Methods, Offered, choose_method, recognising
from phyla.selection.numerics import Numerics, choose_numerics, identify
from phyla.selection.openers import Opened, is_known, open_checkpoint
from phyla.selection.proposers import NO_PROPOSER, Proposers, choose_proposer, engine_names, fill_sources
from phyla.selection.schemes import ChosenSchemes, Schemes, choose_schemes
from phyla.selection.settings import SelectionSettings
from phyla.selection.strategies import check_dtype, check_strategies, choose_strategies
from phyla.selection.wanted import QUESTIONS, Wanted, WantedMap, wanted_by_plugin, wanted_of
from phyla.settings import Settings

OWN_FILE_SPEC = "config"
"""The scheme alias that follows the quantisation file beside a checkpoint."""


def select(
    reference: str,
    manager: PluginManager,
    settings: Settings,
    backend: BackendFacts,
) -> Plan:
    """Choose everything that is needed to load and run a model; loads nothing.

    Args:
        reference: model folder, file or hub id.

    Raises:
        UsageError: an explicit choice can't be honoured; says why and what to do.
        CheckpointError: the reference can't be used, or no family knows it.
        PluginError: plugins contradict each other or break their contract; names them.
    """
    opened = open_checkpoint(reference, manager.openers(settings))
    selection = _Selection(manager, settings, backend, opened.checkpoint)
    decided = selection.decide()
    idle = check_draft_flags(settings, decided.method, selection.methods)
    options = settings.section(SelectionSettings)
    return Plan(
        reference=reference,
        model_id=opened.checkpoint.model_id,
        fingerprint=opened.checkpoint.fingerprint,
        opener=opened.opener,
        facts=decided.family.facts,
        backend=backend,
        identity=identify(
            backend,
            decided.numerics,
            options.route,
            decided.strategies.digest(),
            decided.family.facts,
            settings.section(EngineSettings).prefill_chunk,
        ),
        family=decided.family.choice,
        kv_scheme=decided.schemes.choice,
        method=decided.method.choice,
        proposer=decided.proposer,
        dtype=decided.numerics.dtype.name,
        dtype_choice=decided.numerics.dtype,
        weights=decided.numerics.weight_form,
        weights_choice=decided.numerics.weights,
        strategies=decided.strategies,
        route=options.route,
        layer_schemes=decided.schemes.identities,
        drafter_reference=decided.method.drafter_reference,
        drafter_family=None if decided.method.family is None else decided.method.family.choice.name,
        drafter_model=None if decided.method.family is None else decided.method.family.facts,
        draft_facts=decided.method.draft_facts,
        num_draft_tokens=options.num_draft_tokens,
        fills=decided.fills,
        fused_sdpa=_fuses_attention(options, decided),
        compiled_activations=options.compiled_activations,
        compiled_decode=options.compiled_decode,
        windows_ahead=options.windows_ahead,
        notices=(*backend.notices, *settings.notices, *decided.notices, *_without_effect(options, decided), *idle),
    )


@dataclass(frozen=True)
class _Decided:
    family: ChosenFamily
    schemes: ChosenSchemes
    method: ChosenMethod
    proposer: Choice
    fills: tuple[str, ...]
    numerics: Numerics
    strategies: Strategies
    strategy_notices: tuple[str, ...] = ()

    @property
    def choices(self) -> Mapping[Question, Choice]:
        return {
            "family": self.family.choice,
            "kv_scheme": self.schemes.choice,
            "method": self.method.choice,
            "proposer": self.proposer,
            "dtype": self.numerics.dtype,
            "weights": self.numerics.weights,
        }

    @property
    def notices(self) -> tuple[str, ...]:
        return (*self.schemes.notices, *self.method.notices, *self.strategy_notices)


def _fuses_attention(options: SelectionSettings, decided: _Decided) -> bool:
    """What was asked, else what the schemes prefer."""
    if options.fused_sdpa is not None:
        return options.fused_sdpa
    return any(scheme.prefers_fused for scheme in decided.schemes.layers)


def _without_effect(options: SelectionSettings, decided: _Decided) -> Iterator[str]:
    if options.fused_sdpa and decided.schemes.main is None:
        yield "--fused-sdpa has no effect: keys and values are stored plain."
    if options.kv_start and decided.schemes.main is None:
        yield "--quantized-kv-start has no effect: keys and values are stored plain."


class _Selection:
    """One reference on its way to a plan."""

    def __init__(
        self,
        manager: PluginManager,
        settings: Settings,
        backend: BackendFacts,
        checkpoint: Checkpoint,
    ) -> None:
        self._manager = manager
        self._settings = settings
        self._backend = backend
        self._checkpoint = checkpoint
        self._options = settings.section(SelectionSettings)
        self._strategies = choose_strategies(settings, backend)
        self._families: Families = by_name(manager.families(settings), "model family")
        self._schemes: Schemes = by_name(manager.kv_schemes(settings), "KV scheme")
        self.methods: Methods = by_name(manager.methods(settings), "draft method")
        self._proposers: Proposers = by_name(manager.proposers(settings), "proposer")

    def decide(self) -> _Decided:
        wanted: dict[Question, Wanted] = {question: wanted_of(self._settings, question) for question in QUESTIONS}
        if wanted["kv_scheme"].is_auto and self._options.tier == "l2":
            wanted["kv_scheme"] = Wanted(OWN_FILE_SPEC, "flag", "--l2")
        decided = self._decide(wanted)
        answers = self._answers(decided, wanted)
        if not answers:
            return decided
        try:
            return self._decide({**wanted, **answers})
        except (UsageError, LayoutError) as refusal:
            asked = ", ".join(f"{one.name} for {question}" for question, one in answers.items())
            names = sorted({one.where.removeprefix("plugin ") for one in answers.values()})
            raise PluginError(names[0], f"its phyla_plan chose {asked}, which doesn't work: {refusal}") from refusal

    def _decide(self, wanted: WantedMap) -> _Decided:
        family = self._family(wanted["family"])
        schemes = choose_schemes(wanted["kv_scheme"], self._checkpoint, family.facts, self._backend, self._schemes)
        target = DraftTarget(self._checkpoint, family.facts, schemes.main)
        offered = Offered(target, self.methods, self._families, self._open_drafter)
        method = choose_method(wanted["method"], offered, self._options.draft_model)
        strategies, batch = self._strategies.strategies, self._settings.section(EngineSettings).batch
        notices = check_strategies(
            strategies, self._settings, family.facts, schemes.layers, wanted["weights"], self._pinned_by()
        )
        numerics = choose_numerics(
            wanted["dtype"],
            self._strategies.weights(wanted["weights"]),
            self._pinned_by(),
            self._checkpoint,
            family.facts,
            self._backend,
            chosen_product(strategies, family.facts, batch, None),
        )
        check_dtype(strategies, numerics.dtype.name)
        return _Decided(
            family,
            schemes,
            method,
            choose_proposer(wanted["proposer"], self._proposers),
            tuple(one.name for one in fill_sources(self._options.fill, self._proposers)),
            numerics,
            strategies,
            (*self._strategies.notices, *notices),
        )

    def _family(self, wanted: Wanted) -> ChosenFamily:
        try:
            return choose_family(wanted, self._checkpoint, self._families)
        except UnsupportedModel as error:
            for method in recognising(self._checkpoint, self.methods):
                if not method.value.drafter_is_model:
                    error.add_note(
                        f"It is a draft head for method '{method.value.name}': give the model that it drafts for, and "
                        "this with --draft-model."
                    )
            raise

    def _answers(self, decided: _Decided, wanted: WantedMap) -> dict[Question, Wanted]:
        candidates = Candidates(
            facts=decided.family.facts,
            backend=self._backend,
            defaults={question: choice for question, choice in decided.choices.items() if wanted[question].is_auto},
            names=self._names(),
        )
        taken: dict[Question, Wanted] = {}
        owners: dict[Question, str] = {}
        for answer in self._manager.plan_answers(candidates, self._settings):
            for question, name in answer.value.choices.items():
                self._check_answer(answer.plugin, question, name, candidates, owners)
                if question in candidates.defaults:
                    owners[question] = answer.plugin
                    taken[question] = wanted_by_plugin(answer, question)
        return taken

    def _check_answer(
        self, plugin: str, question: Question, name: str, candidates: Candidates, owners: Mapping[Question, str]
    ) -> None:
        if question not in QUESTIONS:
            raise PluginError(plugin, f"its phyla_plan answers '{question}'; questions are {', '.join(QUESTIONS)}.")
        if question in owners:
            raise PluginError(
                plugin,
                f"its phyla_plan chooses the {question} '{name}', and plugin '{owners[question]}' chooses one too. "
                f"Switch one off with --disable, or choose with --{question.replace('_', '-')}.",
            )
        if name.partition(":")[0] not in candidates.names[question]:
            raise PluginError(
                plugin,
                f"its phyla_plan chooses the {question} '{name}'; it can be "
                f"{', '.join(candidates.names[question]) or 'nothing'}.",
            )

    def _names(self) -> Mapping[Question, tuple[str, ...]]:
        return {
            "family": claiming(self._checkpoint, self._families),
            "kv_scheme": tuple(name for name, one in self._schemes.items() if one.value.tier != "lab"),
            "method": (NO_METHOD, *(name for name, one in self.methods.items() if one.value.tier != "lab")),
            "proposer": (NO_PROPOSER, *engine_names(self._proposers)),
            "weights": ("stored", "dense"),
            "dtype": ("float32", "bfloat16", "float16"),
        }

    def _pinned_by(self) -> str | None:
        """The flag that insists on the checkpoint's own weight form."""
        if self._options.route == "exact":
            return "--route exact"
        if self._settings.section(EngineSettings).batch == 1:
            return "--batch 1"
        if self._settings.origin(SelectionSettings, "tier").is_explicit and self._options.tier == "l1":
            return "--l1"
        return None

    def _open_drafter(self, name: str) -> Opened:
        openers = self._manager.openers(self._settings)
        try:
            if name != STARTER_NAME and is_known(name, openers):
                return open_checkpoint(name, openers)
            return open_checkpoint(local_reference(name, self._settings.section(ModelsSettings)), openers)
        except PhylaError as error:
            error.add_note(f"While opening the drafter --draft-model {name}.")
            raise
