"""Groups that own one buffer per layer for all their rows: one append and one attention for everybody.

Rows of like length share a bay; each layer of a bay is one stacked state, and all of them follow the bay's `Seating`.
"""
