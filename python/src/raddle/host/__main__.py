"""`python -m raddle.host APP`."""

from .service import main

main()
