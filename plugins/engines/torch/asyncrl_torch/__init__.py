"""Embedded engine: continuous batching for Hugging Face models behind SGLang's native API."""
