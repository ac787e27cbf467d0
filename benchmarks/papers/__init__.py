"""The tables and figures of the source papers, row by row; run by ``benchmarks.reproduce``."""
