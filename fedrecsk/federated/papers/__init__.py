"""Methods that are here to reproduce tables of papers."""
