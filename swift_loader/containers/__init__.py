"""Containers for data sets whose memory all workers share."""
