"""`python -m stepwell.cli`, for where no script is on the path."""

from stepwell.cli import main

main()
