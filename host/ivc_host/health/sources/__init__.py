"""The project's own sources of health, one a file; each is an entry point of the group `ivc.health`."""
