"""Fits in one process or on a Dask cluster: a server, and clients in threads or on workers."""
