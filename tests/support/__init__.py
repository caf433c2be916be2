"""Helpers for the tests: oracles, random cases, planted engines, processes and pages."""
