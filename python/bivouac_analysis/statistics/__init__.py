"""Tests whether groups of measurements differ, and how many measurements such a test needs."""
