"""Crash-conformance harness for durable stores."""
