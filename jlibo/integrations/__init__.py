"""Integrations with other libraries. Each needs its library, so none is imported by default."""
