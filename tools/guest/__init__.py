"""Guests with Soft-RoCE: real libibverbs on machines without an RDMA card."""
