"""Which way of computing a thing is fast here: measured tables, what a user forces, and the choice between them.

No mlx: the plan chooses from these before anything is loaded. The ways themselves are functions beside the code that
uses them (`phyla.kv.group_attention`, `phyla.kv.group_append`, `phyla.nn.products`); each such module maps names to
functions, and that mapping is where a kernel of one's own plugs in.
"""

from phyla.backend.strategy.geometry import (
    AppendGeometry,
    AttentionGeometry,
    DecodeGeometry,
    Geometry,
    MatmulGeometry,
    QmmGeometry,
)
from phyla.backend.strategy.names import OPERATIONS, Operation, rows_per_call
from phyla.backend.strategy.settings import StrategySettings, parse_forced
from phyla.backend.strategy.strategies import Chosen, Strategies
from phyla.backend.strategy.table import Point, StrategyTable, read_table, shipped_table
from phyla.backend.strategy.user_table import load_strategies, user_table_path

__all__ = [
    "OPERATIONS",
    "AppendGeometry",
    "AttentionGeometry",
    "Chosen",
    "DecodeGeometry",
    "Geometry",
    "MatmulGeometry",
    "Operation",
    "Point",
    "QmmGeometry",
    "Strategies",
    "StrategySettings",
    "StrategyTable",
    "load_strategies",
    "parse_forced",
    "read_table",
    "rows_per_call",
    "shipped_table",
    "user_table_path",
]
