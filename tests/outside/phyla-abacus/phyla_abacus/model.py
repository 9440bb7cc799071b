"""The decoder itself: three methods, and core does the rest."""

from phyla import ModelBinding
from phyla.kv import Causal
from phyla.nn.activation import swiglu
from phyla.nn.attention import Attention
from phyla.nn.embedding import embed_step
from phyla.nn.mlp import GatedMLP
from phyla.nn.rope import Rope


class Block:
    """`h + attention(norm(h)) + mlp(norm(h))`."""

    def __init__(self, index, config, load):
        width, heads, inner = config["hidden_size"], config["num_heads"], config["inner_size"]
        path = f"blocks.{index}"
        self.norm = load.norm(f"{path}.norm", width, eps=1e-6)
        self.attention = Attention(
            qkv=load.fused([f"{path}.{part}" for part in "qkv"], width, [width] * 3),
            out=load.linear(f"{path}.o", width, width),
            rope=Rope(width // heads, base=10000.0),
            num_heads=heads,
            num_kv_heads=heads,
            mask=Causal(),
        )
        gate_up = load.fused([f"{path}.gate", f"{path}.up"], width, [inner] * 2)
        self.mlp = GatedMLP(gate_up, load.linear(f"{path}.down", inner, width), swiglu)


class Abacus(ModelBinding):
    def __init__(self, config, facts, load):
        super().__init__(facts)
        self.embedding = load.embedding("embed", facts.vocab_size, facts.hidden_size)
        self.blocks = [Block(layer.index, config, load) for layer in facts.layout]
        self.norm = load.norm("norm", facts.hidden_size, eps=1e-6)

    def embed(self, step):
        return embed_step(self.embedding, step)

    def layer(self, index, hidden, step, states):
        block = self.blocks[index]
        normed = block.norm(hidden)
        return hidden + block.attention(normed, step, states[index]) + block.mlp(normed, step.route)

    def head(self, hidden):
        return self.embedding.project(self.norm(hidden))
