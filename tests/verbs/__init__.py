"""Tests on real libibverbs, in guests with Soft-RoCE."""
