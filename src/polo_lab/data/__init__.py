"""Data sets to measure on, read from the folder that the setting POLO_DATA names."""
