"""The version, which stands here alone: the build and all that shows it ask this module."""

__all__ = ["__version__"]

__version__ = "0.2.0"
