"""Modules shared by several systems."""
