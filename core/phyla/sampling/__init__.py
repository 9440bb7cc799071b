"""From logits to a token: processors, log-probabilities, filters, the draw.

Exported here is what needs no mlx; `phyla.sampling.sampler` is imported where there are arrays.
"""

from phyla.sampling.declaration import LogitsProcessor, LogprobsSampler, NamedSampler
from phyla.sampling.defaults import SamplingDefaults, merge_defaults
from phyla.sampling.resolve import resolve_sampling
from phyla.sampling.settings import SamplingSettings

__all__ = [
    "LogitsProcessor",
    "LogprobsSampler",
    "NamedSampler",
    "SamplingDefaults",
    "SamplingSettings",
    "merge_defaults",
    "resolve_sampling",
]
