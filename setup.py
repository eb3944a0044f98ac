"""For tools that still ask for a `setup.py`; everything stands in `pyproject.toml`."""

from setuptools import setup

setup()
