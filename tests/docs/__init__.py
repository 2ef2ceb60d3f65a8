"""The documentation as a site: `make docs`, its generated reference, and what its commands do."""
