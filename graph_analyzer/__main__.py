"""``python -m graph_analyzer``."""

from graph_analyzer.cli import main

if __name__ == "__main__":
    main()
