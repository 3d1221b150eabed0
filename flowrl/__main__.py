"""``python -m flowrl`` is the command ``flowrl``."""

from flowrl.cli import main

if __name__ == "__main__":
    main()
