"""Three shops learn to recommend together and keep their customers' data."""
