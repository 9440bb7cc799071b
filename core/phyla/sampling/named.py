"""A row's sampler with everything its request names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from phyla.errors import GenerationFailed, RequestError, UnknownName
from phyla.request import Request
from phyla.sampling.declaration import LogitsProcessor, LogprobsSampler, NamedSampler
from phyla.sampling.random_stream import fresh_seed, sample_seed
from phyla.sampling.sampler import RowSampler


def row_sampler(
    request: Request, *, vocab_size: int, eos_ids: Iterable[int], named: Sequence[NamedSampler] = (), sample: int = 0
) -> RowSampler:
    """The sampler of one sample of a request.

    Args:
        request: whose row it is.
        vocab_size: ids that have a logit.
        eos_ids: end-of-sequence ids of the model.
        named: what `phyla_samplers` gave.
        sample: which of `request.num_samples` rows; each has a random stream of its own.

    Raises:
        RequestError: the request names two samplers, or something that nobody offers.
        GenerationFailed: creating one raised.
    """
    processors: list[LogitsProcessor] = []
    samplers: list[LogprobsSampler] = []
    for name in request.sampling.processors:
        declaration = _find(name, named)
        created = _create(declaration, request)
        if declaration.role == "sampler":
            samplers.append(created)  # type: ignore[arg-type]
        else:
            processors.append(created)  # type: ignore[arg-type]
    if len(samplers) > 1:
        raise RequestError("Only one sampler can choose the tokens of a request; name one of them.")
    given = request.sampling.seed
    return RowSampler(
        request.sampling,
        vocab_size,
        eos_ids,
        seed=sample_seed(fresh_seed() if given is None else given, sample),
        processors=processors,
        sampler=samplers[0] if samplers else None,
    )


def _find(name: str, named: Sequence[NamedSampler]) -> NamedSampler:
    for one in named:
        if one.name == name:
            return one
    raise RequestError(str(UnknownName("logits processor", name, [one.name for one in named])))


def _create(declaration: NamedSampler, request: Request) -> LogitsProcessor | LogprobsSampler:
    try:
        return declaration.create(request)
    except Exception as error:
        raise GenerationFailed(
            f"Logits processor '{declaration.name}' raised {type(error).__name__} when it was created."
        ) from error
