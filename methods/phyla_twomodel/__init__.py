"""Two-model drafting: a small model of the same tokenizer proposes, the target checks.

The drafter may be of any family, with layers of any kind; it is bound as the target is and stores plainly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from phyla import DraftFacts, DraftMethod, Settings, hookimpl

from phyla_twomodel.tokenizers import is_language_model, same_tokenizer, vocabulary_notes

if TYPE_CHECKING:
    from phyla import Drafter, DraftProvider, DraftTarget, LoadableDrafter, ModelBinding, ModelFacts

phyla_api = 1

MAX_DRAFT_TOKENS = 3
"""mlx-lm's number: a drafter that is worth having is often right three times running, seldom six times."""


@hookimpl
def phyla_methods(settings: Settings) -> list[DraftMethod]:
    return [
        DraftMethod(
            name="two-model",
            create=_create,
            detect=lambda drafter: is_language_model(drafter.config),
            describe=_describe,
            supports=same_tokenizer,
            aliases=("twomodel", "draft-model"),
            needs_drafter=True,
            drafter_is_model=True,
            description="a smaller model of the same tokenizer proposes; name it with --draft-model",
        )
    ]


def _describe(target: DraftTarget, drafter: Drafter | None) -> DraftFacts:
    assert drafter is not None, "it needs a drafter"
    return _facts(target.facts, drafter)


def _create(target: ModelBinding, drafter: LoadableDrafter | None) -> DraftProvider:
    from phyla_twomodel.provider import TwoModelProvider

    assert drafter is not None, "it needs a drafter"
    facts = _facts(target.facts, drafter)
    return TwoModelProvider(facts, drafter.bind(), target.facts.vocab_size, drafter.new_state)


def _facts(target: ModelFacts, drafter: Drafter) -> DraftFacts:
    assert drafter.model is not None, "its drafter is a model"
    return DraftFacts(
        layout=drafter.model.layout,
        weight_bytes=drafter.model.weight_bytes.total,
        follows_from_tokens=True,
        max_tokens=MAX_DRAFT_TOKENS,
        identity=drafter.checkpoint.fingerprint,
        notes=vocabulary_notes(target, drafter.model),
    )
