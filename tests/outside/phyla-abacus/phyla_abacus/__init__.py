"""Abacus: a decoder whose attention and feed-forward read the same norm side by side."""

from phyla import Checkpoint, Claim, Family, LayerSpec, LoadOptions, ModelBinding, ModelFacts, hookimpl
from phyla.kv import Plane
from phyla.model.headers import eos_ids, sampling_defaults, stored_dtype, weight_bytes

phyla_api = 1


class AbacusFamily:
    name = "abacus"

    def claim(self, config) -> Claim:
        return Claim.EXACT if config.get("model_type") == "abacus" else Claim.NONE

    def describe(self, checkpoint: Checkpoint) -> ModelFacts:
        config = checkpoint.config
        heads, head_dim = config["num_heads"], config["hidden_size"] // config["num_heads"]
        planes = (Plane("keys", heads, head_dim), Plane("values", heads, head_dim))
        return ModelFacts(
            family=self.name,
            architecture="abacus",
            layout=tuple(
                LayerSpec(index, "full", planes, scale=head_dim**-0.5, num_query_heads=heads)
                for index in range(config["num_layers"])
            ),
            hidden_size=config["hidden_size"],
            vocab_size=config["vocab_size"],
            context_limit=config["context_limit"],
            weight_bytes=weight_bytes(checkpoint),
            stored_dtype=stored_dtype(checkpoint),
            eos_ids=eos_ids(checkpoint),
            sampling_defaults=sampling_defaults(checkpoint),
        )

    def bind(self, checkpoint: Checkpoint, facts: ModelFacts, options: LoadOptions) -> ModelBinding:
        from phyla.model.loading import load_weights  # mlx is imported here, once this family is chosen

        from phyla_abacus.model import Abacus

        return load_weights(checkpoint, options, lambda load: Abacus(checkpoint.config, facts, load))


@hookimpl
def phyla_families() -> list[Family]:
    return [AbacusFamily()]
