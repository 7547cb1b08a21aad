"""The command ``rdma-transport qualify``: one function per claim about the fabric between hosts."""
