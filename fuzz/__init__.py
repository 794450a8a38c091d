"""Fuzz targets: promises about hostile bytes, and drivers that look for bytes that break them.

A target is a plain function from bytes to nothing that raises when a promise is broken. Atheris
drives it by coverage (`make fuzz`), hypothesis in the tests (`tests/fuzz`). See fuzz/README.md.
"""
