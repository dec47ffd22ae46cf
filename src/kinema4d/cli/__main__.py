"""``python -m kinema4d.cli``."""

from kinema4d.cli import main

main()
