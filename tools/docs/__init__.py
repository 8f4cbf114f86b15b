"""Generates reference pages, man pages, the site (`make docs`, `make man`) and the chart (`make charts`); checks words."""
