"""Loading the feed-forward blocks: dense, or experts with one that every token shares."""

from __future__ import annotations

from phyla.model.expert_sizes import ExpertSizes
from phyla.model.loading import WeightLoader
from phyla.nn.activation import GatedActivation
from phyla.nn.experts import ExpertLinear, GatedExperts
from phyla.nn.mlp import GatedMLP
from phyla.nn.moe import SharedExpertMLP, SoftmaxRouter


def gated_mlp(path: str, width: int, inner: int, activation: GatedActivation, load: WeightLoader) -> GatedMLP:
    """`path.{gate,up,down}_proj`."""
    return GatedMLP(
        gate_up=load.fused([f"{path}.gate_proj", f"{path}.up_proj"], width, (inner, inner)),
        down=load.linear(f"{path}.down_proj", inner, width),
        activation=activation,
    )


def mlp_with_experts(
    path: str, width: int, sizes: ExpertSizes, activation: GatedActivation, load: WeightLoader
) -> SharedExpertMLP:
    """`path.gate`, the experts, `path.shared_expert` and its gate."""
    return SharedExpertMLP(
        router=SoftmaxRouter(
            load.linear(f"{path}.gate", width, sizes.num_experts), sizes.num_chosen, sizes.is_normalised
        ),
        experts=_experts(path, width, sizes, activation, load),
        shared=gated_mlp(f"{path}.shared_expert", width, sizes.shared_intermediate_size, activation, load),
        shared_gate=load.linear(f"{path}.shared_expert_gate", width, 1),
    )


def _experts(
    path: str, width: int, sizes: ExpertSizes, activation: GatedActivation, load: WeightLoader
) -> GatedExperts:
    """Published checkpoints store gate and up of all experts as one tensor; converters take them apart."""
    count, inner = sizes.num_experts, sizes.intermediate_size
    if load.has(f"{path}.experts.gate_up_proj"):
        gate_up = load.tensor(f"{path}.experts.gate_up_proj", (count, 2 * inner, width))
        down = load.tensor(f"{path}.experts.down_proj", (count, width, inner))
        # Views: the two halves keep the one tensor alive, and nothing is copied.
        gate, up = (ExpertLinear.of_matrices(half) for half in (gate_up[:, :inner], gate_up[:, inner:]))
        return load.hold(GatedExperts(gate, up, ExpertLinear.of_matrices(down), activation))
    return GatedExperts(
        gate=load.experts(f"{path}.switch_mlp.gate_proj", count, width, inner),
        up=load.experts(f"{path}.switch_mlp.up_proj", count, width, inner),
        down=load.experts(f"{path}.switch_mlp.down_proj", count, inner, width),
        activation=activation,
    )
