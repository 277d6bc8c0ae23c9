"""``python -m sordino``, for ``torchrun -m`` and for environments whose scripts are not on the path."""

from sordino.cli.main import main

if __name__ == "__main__":
    main()
