"""Structural time series: level, trend, seasons and regression as a linear dynamical system."""
