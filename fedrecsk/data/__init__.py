"""From (X, y, clients, weights) to ids, codes and sparse rows; checks of input."""
