"""From logits to a token: processors, log-probabilities, filters, the draw."""

from phyla.sampling.declaration import LogitsProcessor, LogprobsSampler, NamedSampler

__all__ = ["LogitsProcessor", "LogprobsSampler", "NamedSampler"]
