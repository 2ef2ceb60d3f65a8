"""Releases: `make release` makes everything that users download, into dist/, twice the same bytes.

It is here, beside the images of the tests' cluster, because it builds the same images with the same
tools, and the tests install what it made.
"""
