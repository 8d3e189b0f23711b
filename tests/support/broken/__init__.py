"""Plugins that break one rule of their slot's suite each, beside a right one that keeps them all."""
