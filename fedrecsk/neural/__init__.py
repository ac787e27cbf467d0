"""Neural methods; they need torch."""
