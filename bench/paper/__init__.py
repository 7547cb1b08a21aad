"""The evaluation of "RPC Considered Harmful" (Xue et al., EuroSys 2019), run again here."""
